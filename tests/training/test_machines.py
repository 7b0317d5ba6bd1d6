"""Two machines: network namespaces, each with an address of its own and a cable between them, and torchrun in
each. It needs root and iproute2."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from helpers.runs import TINY, rows, tiny, write_data
from regard.runs import checkpoints as checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick")]

SETTINGS = {"train__batch": 4, "train__evaluate": 2, "train__save": 2, "train__keep": 99}
SETTINGS |= {"train__schedule": "noam"}  # which does not depend on how many steps there will be
PORT = 29519
WAYS = {"ddp": {}, "fsdp": {"train__parallel": "fsdp"}, "hybrid": {"train__parallel": "hybrid"}}


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@pytest.fixture(scope="module")
def machines():
    """The names of two namespaces that reach each other, and nothing else."""
    if shutil.which("ip") is None:
        pytest.skip("needs the command ip, of iproute2")
    names = [f"regard-{os.getpid()}-{n}" for n in (1, 2)]
    with contextlib.ExitStack() as stack:
        try:
            for name in names:
                ip("netns", "add", name)
                stack.callback(ip, "netns", "del", name)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"needs root, for network namespaces: {error.stderr.strip()}")
        ip("link", "add", "cable1", "netns", names[0], "type", "veth", "peer", "cable2", "netns", names[1])
        for n, name in enumerate(names, 1):
            ip("-n", name, "addr", "add", f"10.19.0.{n}/24", "dev", f"cable{n}")
            ip("-n", name, "link", "set", f"cable{n}", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names


def start(machines, text, out, steps, *more, **settings):
    """The command on each machine, with two processes; all have the same disk."""
    options = TINY | {k.replace("__", "."): v for k, v in (SETTINGS | settings).items()}
    words = ["train", "write", text, "--out", out, "--steps", steps, *more]
    words += [f"--set={key}={value}" for key, value in options.items() if key != "train.steps"]
    launchers = []
    for n, name in enumerate(machines):
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", len(machines)]
        torchrun += ["--node-rank", n, "--nproc-per-node", 2, "--master-addr", "10.19.0.1"]
        torchrun += ["--master-port", PORT, "-m", "regard"]
        environment = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": f"cable{n + 1}"}
        environment |= {"PYTHONPATH": os.pathsep.join(sys.path)}
        launchers.append(
            subprocess.Popen(
                [str(word) for word in ("ip", "netns", "exec", name, *torchrun, *words)],
                env=os.environ | environment,
                start_new_session=True,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    return launchers


def switch_off(name):
    """End all processes of a machine at once, as when its power fails."""
    pids = subprocess.run(["ip", "netns", "pids", name], check=True, capture_output=True, text=True)
    for pid in pids.stdout.split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


def wait_for_step(launcher, step):
    for line in launcher.stderr:
        if line.startswith(f"step {step}/"):
            return
    raise AssertionError("it ended")


@pytest.mark.parametrize("way", WAYS)
def test_a_machine_is_lost_and_training_goes_on(machines, tmp_path, way):
    """Two machines train; one is switched off. Two go on from the last checkpoint, then one alone; every loss
    is that of one process."""
    text, out, alone = write_data("write", tmp_path), tmp_path / "out", tmp_path / "alone"
    launchers = start(machines, text, out, 10**6, **WAYS[way])
    try:
        wait_for_step(launchers[0], 7)
        switch_off(machines[1])
        launchers[0].communicate(timeout=120)  # it notices that the other is gone
        assert launchers[0].returncode != 0
    finally:
        end(machines, launchers)
    last = checkpoint.steps(out / "checkpoints")[-1]
    path = out / "checkpoints" / f"step-{last}"
    assert checkpoint.count_parts(path) == {"ddp": 1, "fsdp": 4, "hybrid": 2}[way]
    launchers = start(machines, text, out, last + 2, "--resume", **WAYS[way])
    try:
        for launcher in launchers:
            _, said = launcher.communicate(timeout=120)
            assert launcher.returncode == 0, said
    finally:
        end(machines, launchers)
    tiny(text, out, **SETTINGS, **WAYS[way], steps=last + 4, resume=True)
    tiny(text, alone, **SETTINGS, steps=last + 4)
    ours, theirs = ({r["step"]: r["loss"] for r in rows(o) if "loss" in r} for o in (out, alone))
    assert ours.keys() == theirs.keys() == set(range(1, last + 5))
    assert ours == pytest.approx(theirs, rel=1e-4)  # in float32
    assert not list(out.rglob(".*"))


def end(machines, launchers):
    for name in machines:
        switch_off(name)
    for launcher in launchers:
        launcher.communicate(timeout=60)
    time.sleep(0.1)  # until their locks are free
