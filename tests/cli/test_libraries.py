"""Which shared libraries the program opens."""

import re
import subprocess

# Of the C and C++ run-time, and the three that the program links to.
ALLOWED = {"libc", "libm", "libgcc_s", "libstdc++", "libpthread", "ld-linux-x86-64", "libfmt", "libpcre2-8", "libutf8proc"}


def test_case_049_no_gpu_library_is_opened(deepinfer, models):
    model = models["smollm2-mxfp4"]
    for command in (
        ["info"],
        ["inspect", model],
        ["run", model, "--prompt", "hi", "--max-tokens", "1"],
        ["bench", "gemm", "--format", "mxfp4", "--shape", "32x32", "--m", "1"],
    ):
        done = deepinfer(*command, env={"LD_DEBUG": "files"})  # the loader tells of dlopen() as well
        assert done.returncode == 0, done.stderr
        opened = {re.sub(r"\.so.*", "", path.split("/")[-1]) for path in re.findall(r"file=(\S+) \[0\]", done.stderr)}
        assert "libc" in opened
        assert opened <= ALLOWED | {"deepinfer"}, opened - ALLOWED


def test_case_049_the_program_has_no_means_to_open_one(program):
    out = subprocess.run(["nm", "-D", "--undefined-only", program], capture_output=True, text=True, check=True).stdout
    assert "mmap" in out and "dlopen" not in out
