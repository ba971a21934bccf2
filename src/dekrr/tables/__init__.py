"""The only reader of tables: words, categories, dates and missing values, rows in memory, and rows in batches.

- `columns`: a frame's columns, what a site tells the others about them, what all agree on, and the encoding by it.
- `rows`: the interface of a site's rows, rows in memory, and the first pass over rows.
- `sources`: files, datasets, lazy frames and functions that rows are read from in batches.
"""
