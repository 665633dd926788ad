"""The page: one HTML file that shows a run, a comparison, a study or an ablation, and opens anywhere."""
