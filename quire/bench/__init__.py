"""Load for any server that speaks OpenAI's API, and what its clients saw; knows no engine.

``workload`` makes requests, ``arrivals`` their times, ``connection`` and ``client`` send them,
``metrics`` turns records into figures, ``report`` prints and saves them; ``run`` joins these.
"""
