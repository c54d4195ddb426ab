"""Programs that `det` starts, or has others start: `determined.cli.tunnel`."""
