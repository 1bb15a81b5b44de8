"""The example domain: alarms of mobile base stations. `python -m signoff_alarms.demo` shows it at work."""
