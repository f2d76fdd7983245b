"""A session as one HTML page: no network, no other file, opens from disk.

    html = page(recording)             # `turnout replay SESSION --html out.html`
    data = model(recording)            # what the page is told, as JSON; `turnout view` sends it again and again

`model.py` makes plain data of a recording, `fold.py` keeps it small, `build.py` puts it into the page beside the style
(`page.css`) and the script (`js/*.js`). The script draws with `textContent` alone, and the page forbids itself every
connection: what a host or a model wrote is shown and never run.
"""

from agent.page.build import page
from agent.page.model import model

__all__ = ["model", "page"]
