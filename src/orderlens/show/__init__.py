"""What people look at: views of samples, the report, the live viewer, and their templates."""
