"""What every process does: settings from the environment, logs, exit codes, memory."""
