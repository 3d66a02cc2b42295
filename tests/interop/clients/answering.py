"""Runs in a foreign environment: calls functions of the module it is given, one JSON line in, one JSON line out."""

import importlib
import json
import sys


def main(module_name: str) -> None:
    """Answer calls until standard input ends."""
    module = importlib.import_module(module_name)
    for line in sys.stdin:
        call = json.loads(line)
        try:
            answer = {"result": getattr(module, call["function"])(*call["arguments"], **call["options"])}
        except Exception as error:
            answer = {"raised": type(error).__name__, "message": str(error)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
