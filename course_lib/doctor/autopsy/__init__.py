"""`course doctor`: reads what a run left behind and says why it died, stalled, or did not learn.

files → lines (sources.py) → events (reader.py) → one detector per verdict → the first that speaks (diagnose.py).
"""
