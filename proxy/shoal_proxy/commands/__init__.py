"""Commands that read a running proxy, or simulate one."""
