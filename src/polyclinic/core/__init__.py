"""Small things that everything else stands on: errors, atomic files, seeds, threads, versions."""
