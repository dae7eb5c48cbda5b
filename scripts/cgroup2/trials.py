"""Tries to break every limit of a sandbox on a host with control groups of version 2 alone.

It runs inside the virtual machine that cgroup2.sh starts, and says a line for each trial.
"""

import os
import pathlib
import platform
import subprocess
import sys
import time
import traceback

from machine import (GROUPS, USER, Place, Scope, Server, Service, groups_of_sandboxes, kill, members, number, python, shell,
                     somebody_in, wait_until, waits)

SERVICE = Service("system.slice/bellglass.service")
SESSION = Place("user.slice/user-0.slice/session-1.scope")
NO_SYSTEMD = Place(".")
UNDELEGATED_SERVICE = Place("plain.slice/plain.service")
DELEGATED = Scope("user.slice/user-1000.slice/user@1000.service/app.slice", USER)
PARTLY_DELEGATED = Scope("user.slice/user-1000.slice/user@1000.service/background.slice", USER)
UNDELEGATED = Place("user.slice/user-1000.slice/session-2.scope", USER)
MIB = 1 << 20
HOG = "held = []\nwhile True:\n    held.append(bytearray(8 << 20))"
BURN = """import os, resource, time
end = time.monotonic() + 6
for _ in range(4):
    if os.fork() == 0:
        while time.monotonic() < end: pass
        os._exit(0)
for _ in range(4): os.wait()
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime)"""


def equal(found, wanted, context=None):
    assert found == wanted, f"{found!r} is not {wanted!r}; {str(context)[:1000]}"


def says_version_2(report: dict):
    """A sandbox's report claims all three controllers, lacks none, and was found to be true."""
    enforced, missing = "\n".join(report["enforced"]), "\n".join(report["missing"])
    for words in ["of memory (cgroup v2)", "processes (cgroup v2)", "CPUs (cgroup v2)"]:
        assert words in enforced, f"{words!r} is not in {enforced}\n{missing}"
    assert "control group" not in missing, missing
    false = [check for check in report["checks"] if not check["holds"]]
    equal(false, [])
    checked = {check["subject"] for check in report["checks"]}
    for file in ["memory.max", "pids.max", "cpu.max"]:
        assert f"control group's {file}" in checked, checked


def says_none(report: dict):
    missing = "\n".join(report["missing"])
    for words in ["memory", "processes", "CPU time"]:
        assert f"no control group for {words}" in missing, missing
    equal([check for check in report["checks"] if not check["holds"]], [])


def the_host_is_of_version_2_alone():
    mounts = pathlib.Path("/proc/mounts").read_text()
    assert " cgroup2 " in mounts and " cgroup " not in mounts, mounts
    given = (GROUPS / "system.slice/cgroup.subtree_control").read_text().split()
    equal(given, ["cpu", "memory", "pids"])


def doctor_says_that_version_2_holds_the_limits():
    for place in [SERVICE, NO_SYSTEMD]:
        findings = {each["subject"]: each for each in place.ask("doctor")["findings"]}
        equal(findings["control groups"]["detail"], "v2: memory, processes and CPU time are limited")
        says_version_2(place.ask("doctor", "--sandbox"))
    equal(groups_of_sandboxes(), [])


def limits_stand_in_one_group(server: Server):
    job = server.submit(shell("cat /proc/self/cgroup"), waits(), cpus=0.5, memory="96MiB", processes=33)
    server.wait_for_step(job, 2)
    group = server.group(job)
    wanted = {"memory.max": str(96 * MIB), "memory.oom.group": "0", "cpu.max": "50000 100000", "pids.max": "146"}
    if (group / "memory.swap.max").exists():
        wanted["memory.swap.max"] = "0"
    equal({file: (group / file).read_text().strip() for file in wanted}, wanted)
    assert server.guest(job) in members(group), members(group)
    server.let_go(job)
    ended = server.wait(job)
    equal(ended["status"], "completed")
    # Nothing of the host's names shows inside.
    equal(ended["steps"][0]["stdout"], "0::/\n")
    assert not group.exists()


def memory_is_bounded_and_the_job_goes_on(server: Server):
    steps = [python(HOG), shell("echo still here"),
             shell("head -c 400M /dev/zero > /dev/shm/file || true; rm -f /dev/shm/file; echo and here"),
             python("import os\nfor _ in range(3):\n    if os.fork() == 0: break\n" + HOG), waits()]
    job = server.submit(*steps, memory="128MiB")
    server.wait_for_step(job, 5)
    group = server.group(job)
    kills, peak = number(group, "memory.events", "oom_kill"), number(group, "memory.peak")
    server.let_go(job)
    ended = server.wait(job)
    equal(ended["status"], "completed", ended["error"])
    killed = ended["steps"][0]
    equal((killed["status"], killed["signal"], killed["error"]["code"]), ("failed", 9, "out_of_memory"), killed)
    assert "128 MiB" in killed["output"], killed
    equal(ended["steps"][1]["stdout"], "still here\n")
    assert "and here" in ended["steps"][2]["stdout"], ended["steps"][2]
    equal(ended["steps"][3]["error"]["code"], "out_of_memory")
    assert kills >= 2, kills
    assert peak <= 128 * MIB, peak
    finished = [event for event in server.events(job) if event["type"] == "step.finished"]
    assert "out_of_memory" in str(finished[0]), finished[0]
    return f"{kills} processes ended, at most {peak // MIB} MiB"


def a_fork_bomb_is_bounded_and_the_next_step_works(server: Server):
    bomb = "import os, time\nwhile True:\n    try:\n        if os.fork() == 0: time.sleep(1000)\n    except OSError: pass"
    job = server.submit(shell("bomb() { bomb | bomb & }; bomb; sleep 1000", timeout=10), python(bomb, timeout=10),
                        shell("echo works; pgrep -cx sleep; true"), processes=40)
    wait_until(lambda: server.job(job)["steps"], "it begins")
    group, most = server.group(job), 0
    while len(server.job(job)["steps"]) < 3:
        try:
            most = max(most, len(members(group)))
        except OSError:
            break
    ended = server.wait(job)
    equal(ended["status"], "completed", ended["error"])
    equal([step["status"] for step in ended["steps"]][1:], ["timed_out", "succeeded"])
    equal(ended["steps"][2]["stdout"], "works\n0\n")
    # Beside the tools there are the guest and its supervisor.
    assert 20 < most <= 42, f"{most} processes at once"
    return f"at most {most} processes"


def processes_are_bounded_by_the_group_too(server: Server):
    """The user's limit comes first; so the group's is made small from outside, as if the other were not."""
    code = ("import os, signal, time\nmade = []\ntry:\n    while True:\n        child = os.fork()\n"
            "        if child == 0: time.sleep(1000)\n        made.append(child)\n"
            "except OSError as error: print(len(made) < 40, error.strerror)\n"
            "for child in made: os.kill(child, signal.SIGKILL)")
    job = server.submit(waits(), python(code), shell("echo works"), processes=400)
    server.wait_for_step(job, 1)
    group = server.group(job)
    (group / "pids.max").write_text(str(number(group, "pids.current") + 30))
    server.let_go(job)
    ended = server.wait(job)
    equal(ended["steps"][1]["stdout"], "True Resource temporarily unavailable\n", ended["steps"][1])
    equal(ended["steps"][2]["stdout"], "works\n")


def a_share_of_a_processor_is_all_there_is(server: Server):
    job = server.submit(python(BURN), waits(), cpus=0.5)
    server.wait_for_step(job, 2)
    throttled = number(server.group(job), "cpu.stat", "nr_throttled")
    server.let_go(job)
    ended = server.wait(job)
    burnt = ended["steps"][0]
    used, lasted = float(burnt["stdout"]), burnt["duration_ms"] / 1000
    assert 0.2 * lasted < used < 0.6 * lasted, f"{used} s of CPU time in {lasted} s"
    assert throttled > 10, throttled
    return f"{used:.1f} s of CPU time in {lasted:.1f} s"


def a_moments_relief_is_taken_back(server: Server):
    """A guest that is late to end a step gets a processor, and the job its share again."""
    burn = "for _ in range(30):\n    if os.fork() == 0: break\nwhile True: pass"
    job = server.submit(python(f"import os\n{burn}", timeout=5), waits(), cpus=0.1)
    server.wait_for_step(job, 2)
    limit = (server.group(job) / "cpu.max").read_text().strip()
    server.let_go(job)
    ended = server.wait(job)
    equal(ended["steps"][0]["status"], "timed_out")
    equal(limit, "10000 100000")
    return f"ended after {ended['steps'][0]['duration_ms'] / 1000:.1f} s of 5"


def a_full_disk_is_full_inside_only(server: Server):
    ended = server.run(shell("head -c 200M /dev/zero > big"), shell("head -c 200M /dev/zero > /tmp/big"),
                       shell("rm -f big /tmp/big; echo room > small; cat small"),
                       disk="50MiB", memory="1GiB", checkpoints=0)
    for step in ended["steps"][:2]:
        equal(step["status"], "failed", step)
        assert "No space left on device" in step["stderr"], step
    equal(ended["steps"][2]["stdout"], "room\n")


def open_files_are_bounded(server: Server):
    code = ("files = []\ntry:\n    while True: files.append(open('/dev/null'))\n"
            "except OSError as error: print(len(files) < 64, error.strerror)")
    ended = server.run(python(code), shell("ulimit -n 100000 2>/dev/null && echo raised; ulimit -n"), open_files=64)
    equal([step["stdout"] for step in ended["steps"]], ["True Too many open files\n", "64\n"])


def endless_output_is_bounded(server: Server):
    ended = server.run(shell("yes", timeout=5), shell("echo on"), output="1MiB")
    endless = ended["steps"][0]
    equal(endless["status"], "timed_out", endless)
    equal(endless["unkept_bytes"], endless["output_bytes"] - MIB)
    kept = server.call(f"/jobs/{ended['job_id']}/steps/1/output")
    assert endless["unkept_bytes"] > 0 and len(kept) < MIB + 1000, (len(kept), endless)
    equal(ended["steps"][1]["stdout"], "on\n")
    return f"{endless['output_bytes'] // MIB} MiB said, 1 MiB kept"


def a_time_out_ends_the_whole_tree(server: Server):
    tree = "setsid sleep 1000 & (trap '' TERM; setsid sleep 1000) & (setsid setsid sleep 1000 &) ; sleep 1000"
    job = server.submit(shell(tree, timeout=3), shell("pgrep -cx sleep; true"), waits())
    server.wait_for_step(job, 3)
    group = server.group(job)
    names = [pathlib.Path(f"/proc/{pid}/comm").read_text().strip() for pid in members(group)]
    server.let_go(job)
    ended = server.wait(job)
    equal([step["status"] for step in ended["steps"]], ["timed_out", "succeeded", "succeeded"])
    equal(ended["steps"][1]["stdout"], "0\n")
    # The step that waits has one.
    assert names.count("sleep") <= 1, names


def a_cancelled_job_leaves_no_group(server: Server):
    job = server.submit(shell("setsid sleep 1000 & (trap '' TERM; sleep 1000) & echo up; sleep 1000"))
    server.wait_for_step(job, 1)
    group = server.group(job)
    processes = members(group)
    assert len(processes) >= 4, processes
    server.cancel(job)
    equal(server.wait(job)["status"], "cancelled")
    assert not group.exists()
    equal([pid for pid in processes if pathlib.Path(f"/proc/{pid}").exists()], [])


def a_killed_server_finds_its_sandbox_again(server: Server):
    job = server.submit(python("import time\nprint('up', flush=True)\n" + HOG),
                        waits(), shell("echo after"), memory="128MiB")
    server.wait_for_step(job, 2)
    group = server.group(job)
    server.kill()
    assert server.guest(job) in members(group)
    server.start()
    server.let_go(job)
    ended = server.wait(job)
    equal((ended["status"], ended["steps"][2]["stdout"]), ("completed", "after\n"), ended["error"])
    assert not group.exists()


def a_sweep_removes_what_nobody_needs(server: Server):
    job = server.submit(shell("echo up; sleep 1000"))
    server.wait_for_step(job, 1)
    group, guest = server.group(job), server.guest(job)
    # A group that was made and never used, as by a server that was killed in between.
    orphan = group.with_name(group.name.split("-")[0] + "-864001")
    server.kill()
    kill(guest)
    orphan.mkdir()
    assert group.exists()
    server.start()
    wait_until(lambda: not orphan.exists(), "the orphan's group is removed")
    server.cancel(job)
    server.wait(job)
    wait_until(lambda: not group.exists(), "the group of a dead sandbox is removed")


def a_killed_run_is_cleaned_up_after_by_the_next():
    home = pathlib.Path("/run/home-0")
    (home / "job.json").write_text('{"steps": [{"tool": "shell", "command": "echo up; sleep 1000"}]}')
    (home / "next.json").write_text('{"steps": [{"tool": "shell", "command": "true"}]}')
    run = SERVICE.start("run", "--json", "job.json", stdout=subprocess.PIPE)
    while '"step.output"' not in (line := run.stdout.readline()):
        assert line, "the job says something"
    run.kill()
    run.wait()
    equal(len(groups_of_sandboxes()), 1)
    following = SERVICE.start("run", "--json", "next.json", stdout=subprocess.DEVNULL)
    equal(following.wait(), 0)
    equal(groups_of_sandboxes(), [])


def a_session_with_other_processes_has_limits_too():
    """As root in a session, whose group cannot be divided, since its shell is in it."""
    with somebody_in(SESSION.group) as shell_of_session:
        says_version_2(SESSION.ask("doctor", "--sandbox"))
        with Server(SESSION, "session") as server:
            memory_is_bounded_and_the_job_goes_on(server)
        assert shell_of_session in members(SESSION.group), members(SESSION.group)
    equal(groups_of_sandboxes(), [])


def a_service_that_is_not_delegated_has_limits_too():
    """Its slice hands on memory and pids only, and whoever is root can have all elsewhere."""
    says_version_2(UNDELEGATED_SERVICE.ask("doctor", "--sandbox"))
    with Server(UNDELEGATED_SERVICE, "undelegated-service") as server:
        said = a_share_of_a_processor_is_all_there_is(server)
    equal(groups_of_sandboxes(), [])
    return said


def a_container_has_limits():
    """The groups of a container begin at its own, which looks like the root and is none. Its first process and
    others are in it."""
    container = GROUPS / "system.slice/container.scope"
    container.mkdir()
    inside = Place("system.slice/container.scope", is_container=True)
    with somebody_in(container) as first:
        says_version_2(inside.ask("doctor", "--sandbox"))
        equal(members(container / "bellglass-server"), [first])
    left = [path.name for path in container.rglob("*") if path.is_dir()]
    equal(sorted(left), ["bellglass", "bellglass-server"])


def a_user_with_a_delegated_group_has_limits():
    findings = {each["subject"]: each for each in DELEGATED.ask("doctor")["findings"]}
    equal(findings["control groups"]["detail"], "v2: memory, processes and CPU time are limited")
    says_version_2(DELEGATED.ask("doctor", "--sandbox"))
    with Server(DELEGATED, "delegated") as server:
        said = [memory_is_bounded_and_the_job_goes_on(server), a_share_of_a_processor_is_all_there_is(server),
                a_fork_bomb_is_bounded_and_the_next_step_works(server)]
        a_cancelled_job_leaves_no_group(server)
        a_killed_server_finds_its_sandbox_again(server)
    equal(groups_of_sandboxes(), [])
    return "; ".join(said)


def a_user_without_one_is_told_so():
    findings = {each["subject"]: each for each in UNDELEGATED.ask("doctor")["findings"]}
    equal(findings["control groups"]["detail"], "no limit by control group on memory, processes, CPU time")
    says_none(UNDELEGATED.ask("doctor", "--sandbox"))
    with Server(UNDELEGATED, "undelegated") as server:
        ended = server.run(python(HOG), shell("echo still here"), memory="128MiB")
        equal(ended["steps"][0]["error"]["code"], "out_of_memory")
        equal(ended["steps"][1]["stdout"], "still here\n")
    equal(groups_of_sandboxes(), [])


def a_users_shell_in_a_delegated_group_is_no_obstacle():
    """`systemd-run --user --scope -p Delegate=yes bash`, and bellglass from there."""
    scope = DELEGATED.prepare()
    inside = Place(str(scope.relative_to(GROUPS)), USER)
    with somebody_in(scope) as shell_of_user:
        says_version_2(inside.ask("doctor", "--sandbox"))
        equal(members(scope / "bellglass-server"), [shell_of_user])


def what_was_not_delegated_is_left_alone():
    """A group that is the user's and yet not made to be divided, such as that of a terminal's tab."""
    scope = DELEGATED.prepare()
    os.removexattr(scope, "user.delegate")
    inside = Place(str(scope.relative_to(GROUPS)), USER)
    with somebody_in(scope) as shell_of_user:
        says_none(inside.ask("doctor", "--sandbox"))
        equal(members(scope), [shell_of_user])
        equal([path.name for path in scope.iterdir() if path.is_dir()], [])


def a_user_with_some_controllers_has_these():
    report = PARTLY_DELEGATED.ask("doctor", "--sandbox")
    enforced, missing = "\n".join(report["enforced"]), "\n".join(report["missing"])
    for words in ["of memory (cgroup v2)", "processes (cgroup v2)"]:
        assert words in enforced, enforced
    assert "no control group for CPU time" in missing and "for memory" not in missing, missing
    equal([check for check in report["checks"] if not check["holds"]], [])


def the_least_memory_is_enough_to_begin_with(server: Server):
    """The limit of a sandbox that waited for a job is lowered while its guest runs."""
    for memory in ["16MiB", "64MiB"]:
        ended = server.run(shell("echo up"), memory=memory)
        equal((ended["status"], ended["steps"][0]["stdout"]), ("completed", "up\n"), ended["error"])


def nothing_is_left():
    equal(groups_of_sandboxes(), [])


BY_THEMSELVES = [the_host_is_of_version_2_alone, doctor_says_that_version_2_holds_the_limits]
ON_A_SERVER = [limits_stand_in_one_group, memory_is_bounded_and_the_job_goes_on,
               a_fork_bomb_is_bounded_and_the_next_step_works, processes_are_bounded_by_the_group_too,
               a_share_of_a_processor_is_all_there_is, a_moments_relief_is_taken_back,
               a_full_disk_is_full_inside_only, open_files_are_bounded, endless_output_is_bounded,
               a_time_out_ends_the_whole_tree, a_cancelled_job_leaves_no_group,
               the_least_memory_is_enough_to_begin_with, a_killed_server_finds_its_sandbox_again, a_sweep_removes_what_nobody_needs]
ELSEWHERE = [a_killed_run_is_cleaned_up_after_by_the_next, a_session_with_other_processes_has_limits_too,
             a_service_that_is_not_delegated_has_limits_too, a_container_has_limits]
AS_A_USER = [a_user_with_a_delegated_group_has_limits, a_users_shell_in_a_delegated_group_is_no_obstacle,
             what_was_not_delegated_is_left_alone, a_user_with_some_controllers_has_these,
             a_user_without_one_is_told_so]


def attempt(trial, *arguments) -> bool:
    began = time.monotonic()
    name = trial.__name__.replace("_", " ")
    try:
        detail = trial(*arguments)
    except Exception:
        print(f"FAILED  {name}\n{traceback.format_exc()}", flush=True)
        return False
    print(f"holds   {name}{f' ({detail})' if detail else ''}, {time.monotonic() - began:.0f} s", flush=True)
    return True


def main() -> int:
    wanted = pathlib.Path("/trial/wanted").read_text().split()
    chosen = lambda trials: [each for each in trials if not wanted or any(word in each.__name__ for word in wanted)]
    held = [attempt(trial) for trial in chosen(BY_THEMSELVES)]
    if on_a_server := chosen(ON_A_SERVER):
        with Server(SERVICE, "service") as server:
            held += [attempt(trial, server) for trial in on_a_server]
        held.append(attempt(nothing_is_left))
    held += [attempt(trial) for trial in chosen(ELSEWHERE)]
    version = tuple(int(part) for part in platform.release().split(".")[:2])
    if version >= (6, 6):
        held += [attempt(trial) for trial in chosen(AS_A_USER)]
    else:
        print(f"LEFT OUT: plain users' sandboxes need Linux 6.6, and this is {platform.release()}", flush=True)
    print(f"{sum(held)} of {len(held)} trials hold on Linux {platform.release()}", flush=True)
    if not all(held):
        for log in pathlib.Path("/run").glob("*.log"):
            print(f"--- {log.name}\n{log.read_text()[-3000:]}", flush=True)
    return 0 if held and all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
