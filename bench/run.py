"""Runs the benchmarks and keeps their figures. Called by run.sh, which sets everything up."""

import argparse
import importlib.util
import json
import pathlib
import sys
import tempfile

sys.dont_write_bytecode = True

import machine
import report

HERE = pathlib.Path(__file__).resolve().parent
NAMES = ["schedule", "job", "sandbox", "tools", "context", "live", "store", "checkpoint"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which ones: {', '.join(NAMES)}; all by default")
    parser.add_argument("--binary", type=pathlib.Path, required=True)
    parser.add_argument("--scratch", type=pathlib.Path, required=True, help="a folder on a real disk")
    parser.add_argument("--smoke", action="store_true", help="only see that everything works; keep no figures")
    options = parser.parse_args()
    if unknown := set(options.names) - set(NAMES):
        parser.error(f"no benchmark is named {', '.join(sorted(unknown))}")

    options.scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        folder = pathlib.Path(scratch).resolve()
        results = HERE / "results"
        if options.smoke:
            results = folder / "results"
            results.mkdir()
        for name in options.names or NAMES:
            facts = machine.facts(folder, options.binary)
            (folder / name).mkdir()
            noise = machine.Noise()
            figures = load(name).measure(options.binary, folder / name, options.smoke)
            # A benchmark that cannot be told apart from others by its processes has looked itself.
            facts["cores_busy_otherwise"] = figures.pop("cores_busy_otherwise", round(noise.cores(), 2))
            text = json.dumps({"name": name, "machine": facts, **figures}, indent=2) + "\n"
            (results / f"{name}.json").write_text(text)
            print(report.table(name, json.loads(text)))
    report.main(["--check"] if options.smoke else [])
    print("bench: all is well" if options.smoke else "bench: done; docs/SPECIFICATION.md is up to date")


def load(name: str):
    """A benchmark's module; its own folder and this one are where it imports from."""
    for folder in (HERE, HERE / name):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    spec = importlib.util.spec_from_file_location(f"{name}_measure", HERE / name / "measure.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
