"""What is recorded of a machine, what forbids joining two runs, and the doctor's findings."""

import copy
import json
import subprocess
import sys
import time

import pytest
import torch

from specbench.measure import diagnosis, disturbance, environment, host
from specbench.measure.disturbance import Ticks


@pytest.fixture(scope="module")
def captured():
    return environment.capture(torch.device("cpu"), 2)


def test_capture_is_plain_json_and_names_the_machine(captured):
    assert json.loads(json.dumps(captured)) == captured
    assert captured["cpu"]["name"]
    assert captured["cpu"]["num_usable"] >= 1
    assert captured["packages"]["torch"] == torch.__version__
    assert captured["threads"]["model"] == 2
    assert captured["device"] == {"type": "cpu"}
    assert len(captured["source"]["code_sha256"]) == 64
    assert captured["state"]["load_average"] >= 0


def changed(captured, path, value):
    other = copy.deepcopy(captured)
    *rooms, name = path.split("/")
    table = other
    for room in rooms:
        table = table[room]
    table[name] = value
    return other


@pytest.mark.parametrize(
    "path",
    [
        "cpu/name",
        "cpu/num_usable",
        "cpu/governor",
        "device/type",
        "device/driver",
        "python",
        "packages/torch",
        "packages/transformers",
        "instruction_set",
        "source/code_sha256",
        "threads/model",
        "variables/OMP_PROC_BIND",
    ],
)
def test_difference_that_matters_is_named(captured, path):
    other = changed(captured, path, "another")
    ((field, _, found),) = environment.differences(captured, other)
    assert field == path.replace("/", ".")
    assert found == "another"


@pytest.mark.parametrize(
    "path",
    [
        "platform",
        "memory_bytes",
        "packages/matplotlib",
        "source/commit",
        "source/dirty",
        "variables/HF_HUB_OFFLINE",
        "state/load_average",
        "state/clock_mhz",
    ],
)
def test_difference_that_changes_no_result_is_passed_over(captured, path):
    assert environment.differences(captured, changed(captured, path, "another")) == []


def test_variables_hold_no_secret_and_no_folder():
    found = environment.variables(
        {
            "HF_TOKEN": "hf_abc",
            "HF_ENDPOINT": "https://user:word@mirror.example/hub",
            "LD_PRELOAD": "/usr/lib/libjemalloc.so:/home/me/other.so",
            "TOKENIZERS_PARALLELISM": "false",
            "OMP_NUM_THREADS": "2",
            "HOME": "/home/me",
            "NOTES_OMP_": "x",
        }
    )
    assert found == {
        "HF_ENDPOINT": "https://(hidden)@mirror.example/hub",
        "HF_TOKEN": "(hidden)",
        "LD_PRELOAD": ".../libjemalloc.so:.../other.so",
        "OMP_NUM_THREADS": "2",
        "TOKENIZERS_PARALLELISM": "false",
    }


def package_in_repository(folder, monkeypatch, tracked):
    """A tiny package folder inside a git repository, tracked by it or merely lying there."""
    package = folder / "specbench"
    (package / "report").mkdir(parents=True)
    (package / "__init__.py").write_text("VALUE = 1\n", encoding="utf-8")
    (package / "report" / "page.py").write_text("PAGE = 1\n", encoding="utf-8")
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    if tracked:
        subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "First"], check=True)
    monkeypatch.setattr(environment, "_PACKAGE", package)
    return package


def test_source_names_commit_and_edits(tmp_path, monkeypatch):
    package = package_in_repository(tmp_path, monkeypatch, tracked=True)
    clean = environment.source()
    assert len(clean["commit"]) == 40
    assert clean["dirty"] is False
    (package / "__init__.py").write_text("VALUE = 2\n", encoding="utf-8")
    edited = environment.source()
    assert edited["dirty"] is True
    assert edited["commit"] == clean["commit"]
    assert edited["code_sha256"] != clean["code_sha256"]


def test_edit_of_what_only_shows_leaves_the_code_hash(tmp_path, monkeypatch):
    package = package_in_repository(tmp_path, monkeypatch, tracked=True)
    before = environment.source()["code_sha256"]
    (package / "report" / "page.py").write_text("PAGE = 2\n", encoding="utf-8")
    assert environment.source()["code_sha256"] == before


def test_installed_package_does_not_borrow_the_commit_around_it(tmp_path, monkeypatch):
    package_in_repository(tmp_path, monkeypatch, tracked=False)
    found = environment.source()
    assert (found["commit"], found["dirty"]) == (None, None)


def test_disturbance_is_the_share_of_ticks_that_went_elsewhere(monkeypatch):
    readings = iter([Ticks(10, 500, 1000, 100.0), Ticks(15, 512, 1020, 102.0)])
    monkeypatch.setattr(disturbance, "_cpu_ticks", lambda: next(readings))
    found = disturbance.Disturbance().read()
    assert found.steal_fraction == pytest.approx(0.25)
    # Twelve busy ticks, two of them our own, of twenty.
    assert found.others_fraction == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (None, None, None),
        (Ticks(10, 500, 1000, 9.0), Ticks(10, 500, 1000, 9.0), None),
        (Ticks(10, 500, 1000, 9.0), Ticks(8, 501, 1010, 12.0), 0.0),
    ],
)
def test_disturbance_without_a_tick_is_unknown_and_never_negative(
    monkeypatch, before, after, expected
):
    readings = iter([before, after])
    monkeypatch.setattr(disturbance, "_cpu_ticks", lambda: next(readings))
    assert disturbance.Disturbance().read()[1:] == (expected, expected)


@pytest.mark.skipif(sys.platform != "linux", reason="the counters are the Linux kernel's")
def test_work_of_our_own_is_known():
    before = disturbance._cpu_ticks()
    deadline = time.process_time() + 0.1
    while time.process_time() < deadline:
        pass
    after = disturbance._cpu_ticks()
    assert after.own - before.own >= 9
    assert after.busy >= before.busy


@pytest.mark.skipif(sys.platform != "linux", reason="the counters are the Linux kernel's")
def test_disturbance_reads_the_kernels_counters_cheaply():
    sampler = disturbance.Disturbance()
    time.sleep(0.05)
    load, stolen, others = sampler.read()
    assert load >= 0
    assert 0 <= stolen <= 1
    assert 0 <= others <= 1
    seconds = []
    for _ in range(50):
        started = time.perf_counter()
        disturbance.Disturbance()
        seconds.append(time.perf_counter() - started)
    # The quickest of many, so that a busy machine does not decide; ten microseconds are usual.
    assert min(seconds) < 100e-6


def test_set_threads_says_what_is_in_force():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert environment.set_threads(2) == 2
        assert environment.set_threads(None) == 2
        assert torch.get_num_threads() == 2
        with pytest.raises(ValueError, match=r"threads 0: allowed are integers >= 1"):
            environment.set_threads(0)
    finally:
        torch.set_num_threads(before)


def test_synchronizer_waits_for_the_device_it_was_made_for(monkeypatch):
    assert environment.synchronizer("cpu")() is None
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    environment.synchronizer(torch.device("cuda:1"))()
    assert waited == [torch.device("cuda:1")]
    with pytest.raises(ValueError, match="allowed are cpu, cuda and mps"):
        environment.synchronizer("meta")


def test_gpu_facts_and_state_are_told_apart(monkeypatch):
    answers = iter(["580.1, 1980, 700.00, Enabled, 345, 31, 0x0000000000000001", "17\n23"])
    monkeypatch.setattr(host, "run", lambda command: next(answers))
    fixed, state = host.gpu("GPU-1")
    assert fixed["driver"] == "580.1"
    assert state == {
        "clock_mhz": "345",
        "temperature_c": "31",
        "throttle_reasons": "0x0000000000000001",
        "num_compute_processes": "2",
    }


def test_host_without_a_driver_has_no_gpu_facts(monkeypatch):
    monkeypatch.setattr(host, "run", lambda command: None)
    assert host.gpu("GPU-1") == ({}, {})


def test_command_that_is_missing_or_fails_says_nothing():
    assert host.run(["no-such-command-at-all"]) is None
    assert host.run([sys.executable, "-c", "print('a'); raise SystemExit(1)"]) is None
    assert host.run([sys.executable, "-c", "print(' a ')"]) == "a"


# Findings


def test_diagnosis_gives_each_check_once_with_a_known_status(monkeypatch):
    monkeypatch.setattr(diagnosis, "_PROBE_BYTES", 1 << 20)
    found = diagnosis.diagnose()
    assert len({check.name for check in found}) == len(found) == 11
    assert {check.status for check in found} <= {"ok", "warn", "fail"}
    assert all(check.advice for check in found if check.status == "warn")


def test_broken_check_is_a_finding_and_the_others_go_on(monkeypatch):
    def broken():
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr(diagnosis, "load", broken)
    monkeypatch.setattr(diagnosis, "_PROBE_BYTES", 1 << 20)
    found = diagnosis.diagnose()
    (failed,) = [check for check in found if check.name == "broken"]
    assert failed.status == "fail"
    assert failed.detail.endswith("RuntimeError: first line")
    assert found[-1].name == "hub"


def test_versions_outside_the_declared_ranges_fail(monkeypatch):
    requirements = ["torch>=1", "numpy>=999", "no-such-package", 'pytest>=999; extra == "test"']
    monkeypatch.setattr(diagnosis.metadata, "requires", lambda name: requirements)
    found = diagnosis.versions()
    assert found.status == "fail"
    assert "numpy" in found.detail
    assert "no-such-package is missing" in found.detail
    assert "torch" not in found.detail
    assert "pytest" not in found.detail


def test_missing_pocket_family_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(diagnosis, "_POCKET", tmp_path)
    assert diagnosis.pocket().status == "fail"
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "model.safetensors").touch()
    assert diagnosis.pocket().detail == "no embedded prompts"
    (tmp_path / "ende.jsonl").touch()
    assert diagnosis.pocket().status == "ok"


def cores(num_usable, num_physical=None, quota=None, governor=None):
    return {
        "name": "a CPU",
        "num_usable": num_usable,
        "num_physical": num_physical,
        "quota": quota,
        "governor": governor,
    }


@pytest.mark.parametrize(
    ("cpu", "status", "advice"),
    [
        (cores(8, 4), "ok", ""),
        (cores(2), "warn", "use --threads 2"),
        (cores(8, quota=2.5), "warn", "use --threads 2"),
        (cores(8, num_physical=3), "warn", "use --threads 3 (real cores)"),
    ],
)
def test_more_threads_than_cores_is_warned_of(monkeypatch, cpu, status, advice):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr(host, "cpu", lambda: cpu)
    found = diagnosis.threads()
    assert (found.status, found.advice) == (status, advice)


@pytest.mark.parametrize(("average", "status"), [(None, "ok"), (0.4, "ok"), (1.5, "warn")])
def test_busy_cores_are_warned_of(monkeypatch, average, status):
    monkeypatch.setattr(host, "load_average", lambda: average)
    monkeypatch.setattr(host, "num_usable_cores", lambda: 4)
    assert diagnosis.load().status == status


@pytest.mark.parametrize(
    ("governor", "status"), [(None, "ok"), ("performance", "ok"), ("powersave", "warn")]
)
def test_changing_clock_is_warned_of(monkeypatch, governor, status):
    monkeypatch.setattr(host, "cpu", lambda: cores(2, governor=governor))
    assert diagnosis.governor().status == status


@pytest.mark.parametrize(("gib", "status"), [(None, "ok"), (8, "ok"), (1, "warn"), (0.25, "fail")])
def test_little_free_memory_is_warned_of(monkeypatch, gib, status):
    available = None if gib is None else int(gib * 2**30)
    monkeypatch.setattr(host, "memory", lambda: {"available_bytes": available})
    assert diagnosis.memory().status == status


def test_bandwidth_probe_reports_a_rate():
    found = diagnosis.bandwidth()
    assert found.status == "ok"
    assert float(found.detail.split(" GB/s")[0]) > 0.01
