"""Write the dashboards into the chart; run by ``make generated`` in the root of the repository."""

from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from monitoring.dashboards import all_dashboards

FOLDER = "charts/shoal/files/dashboards"


def files() -> dict[str, str]:
    """Return the JSON of each dashboard, by path in the repository."""
    encoder = JSONEncoder(sort_keys=True, indent=1)
    return {f"{FOLDER}/{name}.json": encoder.encode(board) + "\n" for name, board in all_dashboards().items()}


def main() -> None:
    """Write the files below the current directory."""
    for path, text in files().items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
