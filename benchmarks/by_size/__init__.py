"""How cost grows with length, width, depth, vocabulary, corpus, batch and ranks (`growth.py`).

`fits` and `communication` are arithmetic; `record` keeps the points, `turns` measures them.
`training_steps`, `decoding_steps`, `corpus_size` and `two_ranks` each answer a question. `summary`,
`figures` and `page` say and draw what was found.
"""
