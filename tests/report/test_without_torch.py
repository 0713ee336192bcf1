"""A report needs neither torch nor transformers nor a model."""

import subprocess
import sys

from synthetic import made, with_norms

SCRIPT = """
import sys
from pathlib import Path
folder = Path(sys.argv[1])
from sinklab.probe.rows import load_all
from sinklab.report import advice, canvas, compare, figures, findings, markup, page, paper, plain, profile, summary, tables, verdict, words
results = load_all(folder)
entry = summary.summarise("m", {}, results, summary.Asked())
figures.draw(folder / "figures", results)
list(tables.tables([entry]))
page.write_page(folder, entry, results)
compare.write_comparison(folder / "figures", [entry, entry], [folder / "report.html"] * 2)
print(*sorted(name for name in sys.modules if name.split(".")[0] in {"torch", "transformers", "datasets"}))
"""


def test_report_imports_and_writes_without_torch(tmp_path):
    with_norms(made(sequences=3)).save(tmp_path)
    done = subprocess.run([sys.executable, "-W", "error", "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""
    assert (tmp_path / "report.html").stat().st_size > 50_000
    assert (tmp_path / "figures" / "report.html").exists()
