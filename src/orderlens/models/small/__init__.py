"""Our own small transformer: ``tiny``, ``tiny-ar`` and whatever ``orderlens train`` writes."""
