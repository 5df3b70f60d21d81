"""One module per notebook: nb00.py belongs to notebooks/00_*.ipynb and holds its LESSON."""
