"""The real engine, simulated: several instances over one faulty store, in virtual time, everything drawn from one seed.

`loop` is an event loop whose time jumps to the next timer and whose processes are frozen and killed between any two
callbacks. `store` holds the journal's promises in memory; `network` stands between one instance and it: it loses,
delays and reorders. `work` is what agents do and tools count. `client` reads streams and checks what it is shown.
`watch` looks at every segment as it is written. `world` plays one seed; `run.run(seed)` gives
what was broken.
"""
