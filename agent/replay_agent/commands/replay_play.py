"""The command `replay-play`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from replay_proto.starting import exits_on_ctrl_c, needs_extras

with exits_on_ctrl_c(), needs_extras("replay-play", "agent"):
    from cyclopts import Parameter, validators
    from cyclopts.types import NonNegativeInt, PositiveInt
    from replay_proto.command_line import new_app, run_app

Gif = Annotated[Path | None, Parameter(validator=validators.Path(dir_okay=False, ext="gif"))]
FramesPerS = Annotated[float, Parameter(validator=validators.Number(gte=0.01, lte=100))]  # as GIF files store them


def play(
    run: Path,
    /,
    *,
    episodes: PositiveInt = 1,
    seed: NonNegativeInt = 0,
    video: Gif = None,
    fps: FramesPerS = 30.0,
) -> int:
    """Show episodes of the best network of a run in a window, or write them to an animated GIF.

    Args:
        run: directory of the run.
        episodes: number of episodes.
        seed: seed of the first episode; the others follow.
        video: a file for an animated GIF; default: a window.
        fps: frames per second of the GIF.
    """
    with needs_extras("replay-play", "agent"):
        from replay_agent.training import playing
    try:
        seeds = range(seed, seed + episodes)
        result, frames = playing.play(run, seeds, "human" if video is None else "rgb_array")
        print("\n".join(f"return {total:g}" for total in result.returns))
        if video is not None:
            playing.save_gif(video, frames, fps)
            print(f"{len(frames):,} frames in {video}")
    except playing.FAILURES as error:
        print(f"replay-play: {error}", file=sys.stderr)
        return 1
    return 0


def main() -> int:
    """Run the command, and return its exit status."""
    return run_app(new_app("replay-play", __doc__, play)) or 0


if __name__ == "__main__":
    sys.exit(main())
