"""Commands about studies: study trains every system that a question needs, with seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heed.cli.common import (
    AsJson,
    Device,
    PluginFiles,
    app,
    console,
    print_json,
    print_text,
    print_warning,
)
from heed.errors import ConfigError


@app.command(rich_help_panel="Study")
def study(
    study: Annotated[
        str | None,
        typer.Argument(
            help="A study file, a shipped study, the folder of a study, or a recipe with --vary."
        ),
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=A,B",
            help="A recipe key and its values; repeat for a grid, every combination a system.",
        ),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="A number of seeds, or seeds as 3,4,5. Default: 3.")
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", help="section.key=value, for all systems; repeat for more."),
    ] = None,
    data: Annotated[str | None, typer.Option(help="The folder of the recipes' data files.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The study's folder. Default: runs/NAME; of a recipe, runs/RECIPE-study."
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="The study's quick form, minutes on two cores.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only estimate runs, minutes and disk space.")
    ] = False,
    jobs: Annotated[
        int | None,
        typer.Option(
            help="Trials at a time. Default: one for each core; on a GPU, one; on Ray, all it can."
        ),
    ] = None,
    on: Annotated[
        str, typer.Option(help="Where trials run: local, or ray (a Ray cluster).")
    ] = "local",
    address: Annotated[
        str | None,
        typer.Option(
            help="HOST:PORT of the Ray cluster. Default: RAY_ADDRESS, else Ray on this machine."
        ),
    ] = None,
    cpus_per_trial: Annotated[
        float | None,
        typer.Option(help="CPUs that Ray sets aside for a trial. Default: its threads."),
    ] = None,
    gpus_per_trial: Annotated[
        float | None,
        typer.Option(help="GPUs, 0.5 for two trials on one. Default: 1 where there are any."),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(help="Stop after this many minutes; run the command again to continue."),
    ] = None,
    reuse: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FOLDER",
            help="Take finished runs of the same recipe and text from here; repeat for more.",
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(help="CPU threads of each trial, recorded in the study. Default: 1."),
    ] = None,
    device: Device = "auto",
    csv: Annotated[
        Path | None, typer.Option(help="Write a row for each trial to this file.")
    ] = None,
    status: Annotated[bool, typer.Option("--status", help="Only show the progress.")] = False,
    stop: Annotated[
        bool,
        typer.Option("--stop", help="Stop the running study; each trial saves a checkpoint first."),
    ] = False,
    list_studies: Annotated[bool, typer.Option("--list", help="List the shipped studies.")] = False,
    plugin: PluginFiles = None,
    json: AsJson = False,
) -> None:
    """Train every variant of a recipe with several seeds, and compare them.

    Run the same command again to continue a stopped study. More seeds or systems may be added
    later: they are recorded as added. Without arguments the shipped studies are listed.

    heed study positions --quick

    heed study demo-translate --vary model.position=rope,t5,none --seeds 3

    heed study runs/positions-quick --seeds 5

    heed study mine.toml --dry-run
    """
    if study is None and (stop or status or dry_run):
        flag = "--stop" if stop else "--status" if status else "--dry-run"
        raise ConfigError([f"{flag} is about one study: name its file or its folder."])
    if list_studies or study is None:
        from heed.study.studies import table

        console().print(table())
        return
    from heed.study.run_study import (
        Place,
        check_jobs,
        check_minutes,
        default_jobs,
        describe_lone_system,
        locate_study,
        refuse_no_result,
        run_study,
        write_csv,
    )
    from heed.study.runner import RunOptions
    from heed.study.status_table import StatusView, describe_end, render_status
    from heed.study.study_file import StudyFlags
    from heed.study.study_lock import is_running, stop_study
    from heed.study.trials import read_trials, trial_rows

    check_jobs(jobs)
    check_minutes(minutes)
    flags = StudyFlags(vary or (), seeds, change or (), data, quick, threads)
    folder, config = locate_study(study, flags, out)
    screen = console(quiet=json)
    if not (stop or status) and (warning := describe_lone_system(config)):
        print_warning(warning)
    if stop:
        stopped = stop_study(folder)
        print_text(f"{folder}: {'it stops.' if stopped else 'no process runs this study.'}")
        return
    if status:
        states = read_trials(folder)
        running = [s.trial.name for s in states if s.status == "running"] * is_running(folder)
        if not json:
            screen.print(render_status(config, states, folder=folder, running=running))
    elif dry_run:
        from heed.study.study_estimate import estimate_study, render_estimate

        number = jobs or default_jobs(config, device)
        estimate = estimate_study(folder, config, jobs=number, device=device, console=screen)
        if json:
            print_json(vars(estimate))
        else:
            screen.print(render_estimate(estimate, number))
        return
    else:
        place = Place(on, address, cpus_per_trial, gpus_per_trial)
        with StatusView(screen, folder, config, jobs) as view:
            options = RunOptions(jobs, device, minutes, reuse or (), plugin or (), view)
            states = run_study(folder, config, options, place=place)
        if not json:
            print_text(describe_end(folder, config, states))
    if csv is not None:
        write_csv(csv, states)
    if json:
        print_json({"study": str(folder), "trials": trial_rows(states)})
    if not status:
        refuse_no_result(folder, states)
