"""`meshwright profile links`: how fast the ranks of this job can talk to each other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .. import options
from ..console import FORMAT_VERSION, Terminal
from ..files import check_writable, write_file
from ..flag import flag
from .profile import Device, Quick, Resume

if TYPE_CHECKING:
    from ...profiles.cluster.link_fits import Links
    from ...profiles.cluster.link_tests import Ranks
    from ...profiles.profilers.link_ranks import LinkOptions

Output = Annotated[
    Path | None,
    flag("-o", "--output", metavar="FILE", text="Write a cluster file here, and samples and the matrix of nodes beside "
         "it."),
]
NumRanks = Annotated[int | None, flag("--ranks", metavar="N", text="Ranks to start here [one per GPU, or core].")]
Limit = Annotated[str, flag("--largest", metavar="SIZE", text="Largest message [64 MiB].")]
Timeout = Annotated[str, flag("--timeout", metavar="TIME", text="Longest wait for a rank [60s].")]
DryRun = Annotated[bool, flag("--dry-run", text="Show what would be measured.")]


def command(
    context: typer.Context,
    ranks: NumRanks = None,
    gpu: options.Gpu = None,
    device: Device = "auto",
    largest: Limit = "64 MiB",
    quick: Quick = False,
    resume: Resume = False,
    timeout: Timeout = "60s",
    dry_run: DryRun = False,
    output: Output = None,
    force: options.Force = False,
) -> None:
    """Measure the links between the GPUs of a node and between nodes.

    Every ordered pair of ranks (in rounds above 64), all links of two nodes at
    once, and the collectives of every group that a layout may form; then fits
    what the planner needs, and names the links that are slower than their peers.
    The file is a cluster: `plan --cluster links.yaml`. On several nodes, start it
    on each with torchrun; the file is written on the first.

    \b
    Examples:
      meshwright profile links -o links.yaml
      torchrun --nnodes 4 --node-rank 0 --nproc-per-node 8 --master-addr node0 \\
        --master-port 29500 -m meshwright profile links -o links.yaml
    """
    from ...cost_models import units
    from ...runtime import launcher

    terminal: Terminal = context.obj
    _check(device, output, resume=resume, force=force)
    limit, timeout_s = _size(largest), units.parse(timeout, "s")
    launcher.check_torch("`profile`")
    from ...profiles.profilers import link_ranks

    options = link_ranks.LinkOptions(device, quick, limit, timeout_s)
    if dry_run:
        _dry_run(terminal, options, ranks or link_ranks.default_ranks())
        return
    measured = _measured(terminal, options, ranks or link_ranks.default_ranks(), output, resume=resume)
    if measured is not None:  # the first rank
        finish(terminal, *measured, gpu, output, force=force)


def _check(device: str, output: Path | None, *, resume: bool, force: bool) -> None:
    from ...errors import InputError

    if device not in ("auto", "cuda", "cpu"):
        raise InputError(f"--device `{device}` is none of auto, cuda, cpu", hint="`--device auto`")
    if resume and output is None:
        raise InputError("--resume goes on with the samples beside a profile", hint="name it: `-o links.yaml`")
    if output is not None:
        check_writable(output, force=force)


def _size(text: str) -> int:
    """Bytes of the largest message: the line through two sizes needs two."""
    from ...cost_models import units
    from ...errors import InputError
    from ...profiles.cluster.link_tests import SMALLEST

    num_bytes = int(units.parse(text, "B"))
    if num_bytes < 8 * SMALLEST:
        raise InputError(f"--largest `{text}` must be at least {8 * SMALLEST // 1024} KiB", hint="`--largest 64MiB`")
    return num_bytes


def _dry_run(terminal: Terminal, options: LinkOptions, num_ranks: int) -> None:
    from ...profiles.cluster.link_tests import Ranks, tests
    from ..screens import profile_links as profile_links_screen

    scheduled = list(tests(Ranks(("this node",), num_ranks), quick=options.quick))
    terminal.show(profile_links_screen.tests_screen(scheduled, options.limit))


def _measured(
    terminal: Terminal, options: LinkOptions, num_ranks: int, output: Path | None, *, resume: bool
) -> tuple[Links, dict[str, str], str] | None:
    """The links that the first rank measured, their environment and its GPU; None on the other ranks."""
    from ...profiles.cluster import link_fits
    from ...profiles.cluster.link_tests import tests
    from ...profiles.profilers import environment, link_ranks, links
    from ...profiles.profilers.samples import Samples

    with link_ranks.job(options, num_ranks) as job:
        scheduled = list(tests(job.ranks, quick=options.quick))
        if job.rank:
            link_ranks.follow(options, job, scheduled)
            return None
        about = {**environment.environment(job.device), "backend": links.backend(job.device),
                 "ranks": _spelled(job.ranks)}  # fmt: skip
        saved = Samples(output.with_suffix(".samples.csv") if output else None, about, resume=resume)
        with terminal.progress("measuring links") as progress:
            links.measure(job, scheduled, options.limit, options.effort, saved, progress)
        return link_fits.fit(job.ranks, saved.by_key), about, environment.device_name(job.device)


def _spelled(ranks: Ranks) -> str:
    return f"{len(ranks.hosts)} x {ranks.per_node}: {' '.join(ranks.hosts)}"


def finish(
    terminal: Terminal, links: Links, about: dict[str, str], here: str, gpu: str | None, output: Path | None, *,
    force: bool,
) -> None:  # fmt: skip
    from ...profiles.cluster import link_file, link_fits
    from ...profiles.cluster.links import matrix_text
    from ...profiles.io import registry
    from ..screens import profile_links as profile_links_screen
    from .profile import today

    slow = link_fits.slow_links(links)
    name = registry.gpu_name(gpu) if gpu else here
    if output is not None:
        samples, matrix = output.with_suffix(".samples.csv"), output.with_suffix(".matrix.csv")
        where = {"gpu": here if registry.is_gpu(here) else "", **about}
        text = link_file.profile_text(links, slow, gpu=name, about=where, date=today(), samples=samples.name,
                                      matrix=matrix.name)  # fmt: skip
        if link_fits.links_differ(links):
            write_file(matrix, matrix_text(links.ranks.hosts, links.matrix), force=True)
        write_file(output, text, force=force)
        terminal.talk(f"profile: {output}, samples: {samples}")
    different = list(dict.fromkeys(links.ranks.devices))
    if gpu and different:
        terminal.warn(f"--gpu {gpu} is not used: the nodes have {', '.join(different)}, and groups of their own",
                      "`gpu:` of each group in the file names it")  # fmt: skip
    unknown = [device for device in different or [name] if not registry.is_gpu(device)]
    for device in unknown:
        terminal.warn(f"no catalogue knows {device}: `plan` needs its kernels",
                      "`profile kernels -o kernels.yaml`, and `profiles: [kernels.yaml]` in the file")  # fmt: skip
    if terminal.settings.json:
        terminal.write_json({"format_version": FORMAT_VERSION, **profile_links_screen.document(links, slow, about)})
    terminal.show(profile_links_screen.links_screen(links, slow, about, saved_as=str(output) if output else None,
                                                    unknown=unknown[0] if unknown else None))  # fmt: skip
