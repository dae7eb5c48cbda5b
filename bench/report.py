#!/usr/bin/env python3
"""Writes the tables of docs/SPECIFICATION.md from the results. With --check only says whether they fit.

A table stands between two marks, <!-- NAME: begin --> and <!-- NAME: end -->; the text around them is
written by hand.
"""

import json
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "SPECIFICATION.md"
# With more cores than this busy otherwise, a ratio is luck: noise hits a server that waits for each
# flush harder than one that does not, and flatters the latter.
MOST_NOISE = 0.5


def main(arguments: list[str]) -> None:
    before = PAGE.read_text()
    results = {path.stem: json.loads(path.read_text()) for path in sorted((HERE / "results").glob("*.json"))}
    page = fill_in(before, "goals", goals_table(results))
    for name, each in results.items():
        page = fill_in(page, name, table(name, each))
    if "--check" in arguments:
        if page != before:
            raise SystemExit("bench: the tables of docs/SPECIFICATION.md do not fit bench/results; run bench/report.py")
    elif page != before:
        PAGE.write_text(page)


def fill_in(page: str, name: str, text: str) -> str:
    marks = re.compile(f"(<!-- {name}: begin -->\n).*?(<!-- {name}: end -->)", re.DOTALL)
    if not marks.search(page):
        raise SystemExit(f"bench: docs/SPECIFICATION.md has no place for `{name}`")
    return marks.sub(lambda found: f"{found[1]}\n{text}\n{found[2]}", page)


def goals_table(results: dict) -> str:
    peers = results["schedule"]["peers"]
    ratio = peers["bellglass"]["requests_per_second"] / peers["reference"]["requests_per_second"]
    job = results["job"]["peers"]["bellglass"]["done_ms"]["p50"]
    rows = [
        [
            "durable `POST /schedule`, requests per second",
            "at least 10 times the FastAPI reference",
            f"{ratio:.1f} times",
            verdict(results["schedule"], ratio >= 10),
        ],
        [
            "a one-step job, from `POST /schedule` to `completed` with its ZIP ready, median",
            "under 100 ms",
            milliseconds(job),
            verdict(results["job"], job < 100),
        ],
    ]
    if "sandbox" in results:
        rows += sandbox_goals(results["sandbox"])
    if "store" in results:
        rows += store_goals(results["store"])
    if "context" in results:
        rows += context_goals(results["context"])
    if "tools" in results:
        rows += tools_goals(results["tools"])
    if "live" in results:
        rows += live_goals(results["live"])
    if "checkpoint" in results:
        small = results["checkpoint"]["peers"]["bellglass"]["small_ms"]["p50"]
        what = f"a checkpoint of a small change in a workspace of {results['checkpoint']['files']:,} files, median"
        rows.append([what, "under 50 ms", milliseconds(small), verdict(results["checkpoint"], small < 50)])
    return markdown(["what", "goal", "measured", "reached"], rows) + "\n"


# All that hold what they start to a job's limits, as ours does.
RUNTIMES = ["bwrap limited", "crun", "runc", "podman", "runsc", "docker"]


def sandbox_goals(results: dict) -> list[list[str]]:
    starts = {name: peer["start_ms"]["p50"] for name, peer in results["peers"].items()}
    cold, warm, floor = starts["cold"], starts["warm"], starts.get("floor")
    others = {name: starts[name] for name in RUNTIMES if name in starts}
    burst = results["burst"]["cold"]
    whole = burst["succeeded"] == burst["count"]
    added = results["egress"]["proxied_ms"]["p50"] - results["egress"]["direct_ms"]["p50"]
    rows = []

    def row(what: str, goal: str, measured: str, reached: bool) -> None:
        rows.append([what, goal, measured, verdict(results, reached)])

    if floor:
        row("a cold sandbox, from the call to the first output inside, median", "at most twice the floor",
            f"{cold:.1f} ms, {cold / floor:.2f} times", cold <= 2 * floor)  # fmt: skip
    if others:
        best = min(others, key=others.get)
        named = best.replace("bwrap limited", "bubblewrap in control groups")
        row("the same beside every runtime that holds it to a job's limits", "faster than each",
            f"{others[best] / cold:.2f} times faster than {named}", cold < others[best])  # fmt: skip
    if "bwrap" in starts:
        row("the same beside bubblewrap alone, which sets no limits", "faster",
            f"{cold / starts['bwrap']:.2f} times as long", cold < starts["bwrap"])  # fmt: skip
    row("a warm sandbox, the same", "at most 5 ms", milliseconds(warm), warm <= 5)
    row(f"{burst['count']} sandboxes at once, median", "at most 350 ms, all succeed",
        f"{burst.get('p50', 0):.0f} ms, {burst['succeeded']} succeed", whole and burst["p50"] <= 350)  # fmt: skip
    call = results["calls"]["read_file"]["p50"]
    row("a tool call's round trip (`read_file`, which starts no program), median", "at most 0.3 ms", f"{call:.2f} ms", call <= 0.3)
    row("memory of a sandbox that only exists", "at most 5 MiB", f"{results['idle']['mib']:.1f} MiB",
        results["idle"]["mib"] <= 5)  # fmt: skip
    row("what the egress proxy adds to a connection, median", "at most 2 ms", f"{added:.2f} ms", added <= 2)
    memory = results["egress"]["memory_mib"]
    row("what it adds in memory", "at most 20 MiB", f"{memory:.1f} MiB", memory <= 20)
    return rows


def context_goals(results: dict) -> list[list[str]]:
    costs, steps = results["peers"]["bellglass"]["turn_us"], results["steps"]
    ratio, history = costs[-1] / costs[0], results["history"]
    what = f"what a turn costs after {steps[-1]:,} steps of a task, to what it costs after {steps[0]}"
    memory = f"memory for a history of {history['tokens'] / 1e6:.0f} million tokens"
    return [
        [what, "at most twice as much", f"{ratio:.2f} times", verdict(results, ratio <= 2)],
        [memory, "at most 128 MiB", f"{history['memory_mib']:.0f} MiB", verdict(results, history["memory_mib"] <= 128)],
    ]


# What a peer of the tools needs, where that is more than a program of its own name.
TOOL_PEERS = {
    "scrot": ["scrot", "Xtigervnc", "openbox", "xdotool", "xterm"],
    "xdotool": ["xdotool", "Xtigervnc", "openbox", "xterm"],
    "Xvfb + x11vnc": ["Xvfb", "x11vnc", "openbox"],
    "ripgrep": ["rg"],
}


def tools_goals(results: dict) -> list[list[str]]:
    rows = []

    def times(what: str, who: str) -> float | None:
        return results["peers"].get(what, {}).get(who, {}).get("p50")

    def unmeasured(figure: str, peer: str) -> str:
        missing = results["not_available_here"]
        whys = [f"{name}: {missing[name]}" for name in TOOL_PEERS.get(peer, [peer]) if name in missing]
        whose = peer if times(figure, peer) is None else "ours"
        return f"not measured: {', '.join(whys) or f'no figure for {whose}'}"

    def faster(what: str, goal: str, figure: str, peer: str, least: float, who: str = "bellglass") -> None:
        ours, theirs = times(figure, who), times(figure, peer)
        if ours and theirs:
            measured = f"{small(ours)}, {theirs / ours:.1f} times faster than {peer}"
            rows.append([what, goal, measured, verdict(results, theirs >= least * ours)])
        else:
            rows.append([what, goal, unmeasured(figure, peer), "not yet"])

    faster("a screenshot of 1280×800 as PNG, outside, median", "at least 6 times faster than scrot", "screenshot", "scrot", 6)
    faster("move and click, handed to the X server inside the sandbox, median", "at least 50 times faster than an xdotool process", "click",
           "xdotool", 50, "inside")  # fmt: skip
    texts = results["texts"]
    whole = texts.get("lines") == texts.get("lines_typed")
    measured = f"{texts['right']} of {texts['typed']}" + ("" if whole else f"; {texts['lines']} lines came of {texts['lines_typed']}")
    rows.append(["a text of 100 characters of many scripts, typed into a window", "right each time", measured,
                 verdict(results, whole and texts["right"] == texts["typed"])])  # fmt: skip
    for tool, name in (("python", "Python"), ("typescript", "TypeScript")):
        faster(f"{name}: from no kernel to the first result, median", "faster than jupyter_client", f"{tool} first", "jupyter_client", 1)
        faster(f"{name}: a round trip in its kernel, median", "faster than jupyter_client", f"{tool} again", "jupyter_client", 1)
    # Without a viewer's greeting x11vnc has no part in it; the table has that time too.
    ours, theirs = times("desktop whole", "bellglass"), times("desktop whole", "Xvfb + x11vnc")
    row = ["a desktop from nothing: window manager ready and a viewer greeted, median",
           "at most 100 ms, at least 3 times faster than Xvfb + x11vnc"]  # fmt: skip
    if ours and theirs:
        rows.append([*row, f"{ours:.0f} ms, {theirs / ours:.1f} times", verdict(results, ours <= 100 and theirs >= 3 * ours)])
    else:
        rows.append([*row, unmeasured("desktop whole", "Xvfb + x11vnc"), "not yet"])
    faster("searching files, median", "not slower than a ripgrep process", "search", "ripgrep", 1)
    return rows


def verdict(results: dict, reached: bool) -> str:
    if results["machine"]["cores_busy_otherwise"] > MOST_NOISE:
        return "the machine was too busy to say"
    return "yes" if reached else "not yet"


def table(name: str, results: dict) -> str:
    tables = {
        "schedule": schedule_table, "job": job_table, "sandbox": sandbox_table, "tools": tools_table,
        "context": context_table, "live": live_table, "store": store_table,
        "checkpoint": checkpoint_table,
    }  # fmt: skip
    return "\n\n".join([*tables[name](results), machine_line(results["machine"])]) + "\n"


def store_table(results: dict) -> list[str]:
    sizes = [f"{size:,}" for size in results["plan"]["jobs"]]
    rows = [
        [
            peer["label"],
            f"{peer['events_per_second']:,}",
            f"{peer['claims_per_second']:,}",
            *(milliseconds(time) for time in peer["job_ms"].values()),
            f"{peer['growth']:.2f}",
        ]
        for peer in results["peers"].values()
    ]
    columns = [f"a job beside {size} others" for size in sizes]
    return [markdown(["store", "durable events per second", "claims per second", *columns, "ratio"], rows)]


def store_goals(results: dict) -> list[list[str]]:
    small, large = (f"{size:,}" for size in results["plan"]["jobs"])
    return [
        [
            f"a job's way through the store on {peer['label']} beside {large} others, against {small}",
            "at most 1.3 times",
            f"{peer['growth']:.2f} times",
            verdict(results, peer["growth"] <= 1.3),
        ]
        for peer in results["peers"].values()
    ]


def schedule_table(results: dict) -> list[str]:
    peers = results["peers"]
    ours = peers["bellglass"]["requests_per_second"]
    rows = [
        [
            peer["label"],
            f"{peer['requests_per_second']:,.0f}",
            f"{peer['p50_ms']:.1f} ms",
            f"{peer['p99_ms']:.1f} ms",
            f"{peer['cpu_us']:.0f} µs",
            "" if name == "bellglass" else f"{ours / peer['requests_per_second']:.1f}×",
        ]
        for name, peer in peers.items()
    ]
    note = (
        f"Medians of {results['rounds']} rounds in turn, {results['seconds_per_round']} s each, "
        f"{results['connections']} connections. After each round the store was counted and held every "
        f"request that was answered; of {results['ids_looked_up_after_a_kill']:,} more, every id was found "
        "again after the server was killed with SIGKILL."
    )
    head = ["server", "requests/s", "p50", "p99", "CPU time a request", "Bellglass is faster by"]
    return [markdown(head, rows), note]


def job_table(results: dict) -> list[str]:
    rows = []
    for peer in results["peers"].values():
        downloaded = peer.get("downloaded_ms", {"p50": None})
        rows.append([
            peer["label"],
            milliseconds(peer["done_ms"]["p50"]),
            milliseconds(peer["done_ms"]["p95"]),
            milliseconds(downloaded["p50"]),
        ])
    rows += [[f"`{name} run`", "not available", "", ""] for name in results["not_available_here"]]
    head = ["what runs `" + results["command"] + "`", "done, p50", "done, p95", "ZIP downloaded, p50"]
    note = f"{results['runs']} runs of each, one of each in turn, one at a time."
    for name, why in results["not_available_here"].items():
        note += f" No figure for {name} on this machine ({why})."
    steps = [
        [f"`{gap['from']}` → `{gap['to']}`" if gap["from"] != "step" else "of which the step, measured inside",
         milliseconds(gap["p50"]), milliseconds(gap["p95"])]
        for gap in results["timeline"]
    ]  # fmt: skip
    where = "Where a Bellglass job spends it, from the times in its event log:"
    return [markdown(head, rows), note, where, markdown(["from → to", "p50", "p95"], steps)]


def sandbox_table(results: dict) -> list[str]:
    floor = results["peers"].get("floor", {}).get("start_ms", {}).get("p50")
    rows = []
    for name, peer in results["peers"].items():
        burst = results["burst"].get(name)
        times = f"{peer['start_ms']['p50'] / floor:.2f}×" if floor else ""
        at_once = [f"{burst['p50']:.0f} ms", f"{burst['p95']:.0f} ms", f"{burst['succeeded']}"] if burst else ["", "", ""]
        spread = peer["start_ms"]
        rows.append([peer["label"], milliseconds(spread["p50"]), milliseconds(spread["p95"]), times, *at_once])
    for name, why in results["not_available_here"].items():
        rows.append([name, f"not measured: {why}", "", "", "", "", ""])
    count = results["burst"]["cold"]["count"]
    head = ["what runs `bash -c 'echo hi'`", "p50", "p95", "of the floor", f"{count} at once, p50", "p95", "succeeded"]
    note = (
        f"{results['runs']} runs of each, one of each in turn, from the call to the first output. "
        f"Started, used and ended one after the other by as many hands as there are cores, Bellglass makes "
        f"{results['starts_per_second']:.0f} cold sandboxes a second."
    )
    calls = [[f"`{name}`" if " " not in name else f"`{name} … true`", f"{each['p50']:.2f} ms", f"{each['p95']:.2f} ms"]
             for name, each in results["calls"].items()]  # fmt: skip
    idle, egress = results["idle"], results["egress"]
    rest = (
        f"{idle['running']:,} sandboxes that only exist take {idle['mib']:.2f} MiB each, kernel structures included, by "
        f"what is charged to their control groups; the guest's own proportional share is {idle['guest_mib']:.2f} MiB, and what "
        f"the host had left fell by {idle['host_mib']:.2f} MiB for each. "
        f"A connection, a request and its answer take {egress['direct_ms']['p50']:.2f} ms (p95 "
        f"{egress['direct_ms']['p95']:.2f} ms) on the host's loopback and {egress['proxied_ms']['p50']:.2f} ms (p95 "
        f"{egress['proxied_ms']['p95']:.2f} ms) from inside through the egress proxy; {egress['held']} open connections "
        f"take {egress['memory_mib']:.1f} MiB of the proxy's memory."
    )
    about = "A call in a sandbox that is there, from the request to its result:"
    return [markdown(head, rows), note, about, markdown(["call", "p50", "p95"], calls), rest]


def context_table(results: dict) -> list[str]:
    steps, history = results["steps"], results["history"]
    rows = []
    for peer in results["peers"].values():
        costs = peer["turn_us"]
        rows.append([peer["label"], *(microseconds(cost) for cost in costs), f"{costs[-1] / costs[0]:.2f} times"])
    head = ["what makes the next request", *(f"after {count:,} steps" for count in steps), "last to first"]
    note = (
        f"Medians of {results['rounds']} rounds. A history of {history['tokens']:,} tokens ({history['turns']:,} turns) with a "
        f"model that reads {history['readable']:,} was made smaller {history['compactions']} times, was never larger than "
        f"{history['largest_context']:,} tokens, and took {history['seconds']:.1f} s in all, {history['longest_compaction_ms']:.0f} ms "
        f"for the longest time it was made smaller, and {history['memory_mib']:.0f} MiB of memory beyond what the empty program has."
    )
    return [markdown(head, rows), note]


def microseconds(value: float) -> str:
    return f"{value:,.0f} µs" if value < 10_000 else f"{value / 1000:,.0f} ms"


# What the benchmark of tools did, and what stands for it in the table.
TOOL_FIGURES = {
    "screenshot": "screenshot, 1280×800, PNG",
    "click": "move the pointer and click",
    "type": "type 100 characters of the keyboard",
    "type any": "type 100 characters of many scripts",
    "shell": "`bash -c true`",
    "session": "`true` in a shell session",
    "search": "search a tree of files",
    "python first": "Python: first result, no kernel before",
    "python again": "Python: a round trip",
    "typescript first": "TypeScript: first result, no kernel before",
    "typescript again": "TypeScript: a round trip",
    "desktop ready": "desktop: window manager ready",
    "desktop whole": "desktop: a viewer greeted too",
}


def tools_table(results: dict) -> list[str]:
    rows = []
    for figure, name in TOOL_FIGURES.items():
        each = results["peers"].get(figure, {})
        ours = each.get("bellglass")
        for who, spread in each.items():
            label = {"bellglass": "**Bellglass**", "inside": "of which inside the sandbox"}.get(who, who)
            ratio = f"{spread['p50'] / ours['p50']:.1f}×" if ours and who not in ("bellglass", "inside") else ""
            rows.append([name, label, small(spread["p50"]), small(spread["p95"]), ratio])
    note = (
        f"{results['runs']} runs of each, {results['starts']} of what starts something, one of each in turn. Bellglass's "
        "times are those of a call over the wire, from the request until its result and its picture are outside. "
        f"Of {results['texts']['typed']} texts of many scripts, {results['texts']['right']} arrived as they were typed; "
        f"by `xdotool type --delay 0`, {results['texts']['xdotool_right']} did."
    )
    for name, why in results["not_available_here"].items():
        note += f" No figure for {name} on this machine ({why})."
    return [markdown(["what", "by", "p50", "p95", "Bellglass is faster by"], rows), note]


def small(value: float) -> str:
    return f"{value:.2f} ms" if value < 10 else f"{value:.1f} ms"


def live_goals(results: dict) -> list[list[str]]:
    ours, peer = results["peers"]["bellglass"], results["peers"]["websockify"]
    faster = [peer["connect_ms"] / ours["connect_ms"], peer["echo_ms"] / ours["echo_ms"], ours["mib_per_second"] / peer["mib_per_second"]]
    memory = ours["memory_mib_per_viewer"] / peer["memory_mib_per_viewer"]
    crowd, pixels = results["crowd"], {what: each["bellglass"]["p50"] for what, each in results["in_browser_ms"].items()}
    same = min(crowd["same_before"], crowd["same_after"])
    return [
        ["a desktop's bridge beside websockify: connecting, an echo, throughput", "faster in each",
         ", ".join(f"{each:.2f} times" for each in faster), verdict(results, min(faster) > 1)],
        ["its memory for each viewer", "at most a fifth of websockify's", f"{memory:.2f} of it", verdict(results, memory <= 0.2)],
        ["its processes for each viewer", "none", f"{ours['processes_per_viewer']:.0f}", verdict(results, ours["processes_per_viewer"] == 0)],
        [f"{crowd['viewers']} viewers of one desktop at once, before and after it changes", "all are shown the same",
         f"{same} of {crowd['viewers']}", verdict(results, same == crowd["viewers"] and crowd["changed"])],
        ["from an event's time in the log until a browser shows it on the job's page, median", "at most 50 ms",
         milliseconds(pixels["event"]), verdict(results, pixels["event"] <= 50)],
        ["from a program that draws until a browser shows it on the desktop's page, median", "at most 50 ms",
         milliseconds(pixels["desktop"]), verdict(results, pixels["desktop"] <= 50)],
        ["the page's first load, packed", "at most 100 kB", f"{results['page']['kb']:.0f} kB", verdict(results, results["page"]["kb"] <= 100)],
    ]  # fmt: skip


# What the browser was watched doing, and what stands for it in the table.
BROWSER_FIGURES = {
    "first visit": "home page until it takes what is typed, first visit",
    "next visit": "the same, with what the browser has kept",
    "event": "timeline: from an event's time in the log",
    "print": "timeline: from the program that writes",
    "desktop": "desktop: from the program that draws",
}
BROWSER_PEERS = {
    "bellglass": "**Bellglass**", "plain": "a page of one box and one button", "bare": "the same events, put on a page as they are",
    "websockify": "the same page over websockify",
}  # fmt: skip


def live_table(results: dict) -> list[str]:
    rows = [
        [peer["label"], f"{peer['connect_ms']:.2f} ms", f"{peer['echo_ms']:.3f} ms", f"{peer['mib_per_second']:,.0f} MiB/s",
         f"{peer['cpu_ms_per_gib']:,.0f} ms", f"{peer['memory_mib_per_viewer']:.2f} MiB", f"{peer['processes_per_viewer']:.0f}"]
        for peer in results["peers"].values()
    ]  # fmt: skip
    head = ["bridge", "connect", "echo", "throughput", "CPU time a GiB", "memory a viewer", "processes a viewer"]
    crowd = results["crowd"]
    note = (
        f"Medians of {results['rounds']} rounds in turn, both to the X server of the same sandbox: websockify straight to its "
        f"socket, Bellglass through the glass and with every message of the viewer looked at. Connecting ends when the viewer "
        f"knows the desktop; an echo is a picture of one pixel; throughput is whole screens, unpacked; memory is that of "
        f"{crowd['viewers']} viewers at once, by proportional shares. {crowd['viewers']} at once had the same picture: "
        f"{crowd['same_before']} of them before something was drawn, and {crowd['same_after']} after they were told of it."
    )
    events = ", ".join(f"{each['p50']:.1f} ms (p99 {each['p99']:.1f} ms) for {count}" for count, each in results["delivery_ms"].items())
    seen = [
        [name, BROWSER_PEERS[who], milliseconds(spread["p50"]), milliseconds(spread["p95"]), f"{spread['count']:,}"]
        for what, name in BROWSER_FIGURES.items()
        for who, spread in results["in_browser_ms"][what].items()
    ]
    about = f"In Chromium {results['browser']} without a window, until it says that the frame is on the screen:"
    rest = (
        f"From the request that brings an event about until it has reached each viewer of its job: {events}. The page's first "
        f"load is {results['page']['kb']:.0f} kB in {results['page']['requests']} requests."
    )
    return [markdown(head, rows), note, about, markdown(["what", "by", "p50", "p95", "times"], seen), rest]


def checkpoint_table(results: dict) -> list[str]:
    rows = [
        [peer["label"], milliseconds(peer["small_ms"]["p50"]), milliseconds(peer["small_ms"]["p95"]),
         milliseconds(peer["first_ms"]["p50"])]
        for peer in results["peers"].values()
    ]  # fmt: skip
    rows += [[f"`{name}`", f"not measured: {why}", "", ""] for name, why in results["not_available_here"].items()]
    note = (
        f"{results['rounds']} small changes in a workspace of {results['files']:,} files, each kept in turn by each. "
        f"A fork had all of its files {results['restore_ms']:,.0f} ms after its sandbox was ready."
    )
    return [markdown(["what keeps the workspace", "a small change, p50", "p95", "all of it, at first"], rows), note]


def machine_line(facts: dict) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in facts["programs"].items())
    return (
        f"Measured {facts['date']}: {facts['cores']} cores of {facts['cpu']}, {facts['memory_gib']} GiB, "
        f"Linux {facts['kernel']}, {facts['file_system']}, {facts['disk_flush_ms']:.2f} ms for one flush to "
        f"the disk; {facts['cores_busy_otherwise']:.1f} cores were busy with other things meanwhile. {versions}."
    )


def milliseconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} ms"


def markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


if __name__ == "__main__":
    main(sys.argv[1:])
