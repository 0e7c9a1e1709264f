"""The one word that the launcher's output and its readers must agree on."""

# Lines of the launcher's standard output that start with this are events for the controller, as JSON.
EVENT_MARK = "longspan-event "
