"""The small transformer of ``tiny``, ``tiny-ar`` and the models that ``orderlens train`` writes."""
