"""Pages: templates fed with plain data, escaped by default; the only place that writes HTML or Markdown."""
