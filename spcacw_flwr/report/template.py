"""The page's template: a Python text, for Flower ships no .html with an app."""

STYLE = """
:root { --ink: #1b1b1b; --soft: #565656; --line: #d6d6d6; --paper: #ffffff; --card: #f4f6f8;
  --accent: #0072b2; color-scheme: light dark; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #ececec; --soft: #b4b4b4; --line: #444a50; --paper: #16191c; --card: #22272c;
    --accent: #6cb6e8; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 1.0625rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
main { max-width: 44rem; margin: 0 auto; padding: 2.25rem 1.25rem 3rem; }
header p, h1, h2, section > p, .texts td, .texts th, dd { overflow-wrap: anywhere; }
.run { margin: 0; color: var(--soft); font-size: .9rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: .25rem 0 1rem; letter-spacing: -.01em; }
h2 { font-size: 1.3rem; line-height: 1.25; margin: 3rem 0 .6rem; padding-top: 1.1rem;
  border-top: 1px solid var(--line); }
.lead { font-size: 1.2rem; line-height: 1.5; margin: 0 0 1.4rem; }
p { margin: 0 0 1rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(7.4rem, 1fr)); gap: .6rem;
  margin: 0; }
.tiles div { background: var(--card); border-radius: .5rem; padding: .7rem .85rem;
  display: flex; flex-direction: column-reverse; justify-content: flex-end; }
.tiles dt { color: var(--soft); font-size: .82rem; line-height: 1.3; }
.tiles dd { margin: 0; font-size: 1.15rem; font-weight: 650; font-variant-numeric: tabular-nums; }
figure { margin: 1.1rem 0; background: #ffffff; border-radius: .5rem; }
figure img { display: block; width: 100%; max-width: 33rem; height: auto; margin: 0 auto; }
@media (prefers-color-scheme: dark) { figure { padding: .7rem; } }
.wide { overflow-x: auto; margin: 1.1rem 0; }
.wide:focus-visible { outline: 2px solid var(--accent); }
table { border-collapse: collapse; width: 100%; font-size: .92rem;
  font-variant-numeric: tabular-nums; }
p.note { color: var(--soft); font-size: .85rem; line-height: 1.45; margin: 1.1rem 0 .3rem; }
.note + .wide { margin-top: 0; }
th, td { padding: .34rem .55rem; text-align: right; border-bottom: 1px solid var(--line); }
thead th { font-weight: 600; color: var(--soft); vertical-align: bottom; line-height: 1.25; }
tbody th { font-weight: 500; }
th:first-child, td:first-child, .texts th, .texts td { text-align: left; }
th:first-child { padding-left: 0; }
.figures th, .figures td { white-space: nowrap; overflow-wrap: normal; }
.figures th:first-child { position: sticky; left: 0; background: var(--paper); }
details { margin: .8rem 0; }
summary { cursor: pointer; color: var(--accent); }
.words dt { font-weight: 600; margin-top: .7rem; }
.words dd { margin: 0; color: var(--soft); }
@media (max-width: 30rem) { main { padding: 1.4rem 1rem 2rem; } h1 { font-size: 1.6rem; }
  .lead { font-size: 1.1rem; } h2 { margin-top: 2.2rem; } }
@media print {
  :root { --ink: #000; --soft: #444; --line: #bbb; --paper: #fff; --card: #f2f2f2;
    color-scheme: light; }
  body { font-size: 10.5pt; } main { max-width: none; padding: 0; }
  .figures th:first-child { position: static; }
  figure, tr, .tiles { break-inside: avoid; } h2, section > p { break-after: avoid; }
  .wide { overflow: visible; } figure img { max-width: 12cm; } }
"""

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }} – {{ name }}</title>
<style>{{ style | safe }}</style>
</head>
<body>
<main>
<header>
<p class="run">{{ name }}</p>
<h1>{{ title }}</h1>
<p class="lead">{{ headline | join(" ") }}</p>
{%- if tiles %}
<dl class="tiles">
{%- for label, value in tiles %}
<div><dt>{{ label }}</dt><dd>{{ value }}</dd></div>
{%- endfor %}
</dl>
{%- endif %}
</header>
{%- macro listing(table) %}
<table class="{{ 'texts' if table.head[0] in ('key', 'package') else 'figures' }}"
 aria-label="{{ table.caption }}">
<thead><tr>{% for name in table.head %}<th scope="col">{{ name }}</th>{% endfor %}</tr></thead>
<tbody>
{%- for row in table.rows %}
<tr><th scope="row">{{ row[0] }}</th>{% for cell in row[1:] %}<td>{{ cell }}</td>{% endfor %}</tr>
{%- endfor %}
</tbody>
</table>
{%- endmacro %}
{%- for section in sections %}
<section id="{{ section.name }}">
<h2>{{ section.title }}</h2>
<p>{{ section.said | join(" ") }}</p>
{%- for picture in section.pictures %}
<figure><img src="{{ picture.source }}" alt="{{ picture.alt }}"></figure>
{%- endfor %}
{%- for table in section.tables if table.rows %}
<p class="note">{{ table.caption }}</p>
<div class="wide" tabindex="0">
{{- listing(table) }}
</div>
{%- endfor %}
{%- for table in section.folded if table.rows %}
<details>
<summary>{{ table.caption }}</summary>
<div class="wide" tabindex="0">
{{- listing(table) }}
</div>
</details>
{%- endfor %}
</section>
{%- endfor %}
<section id="words">
<h2>What the words mean</h2>
<dl class="words">
<dt>Silo, target, peer</dt>
<dd>A silo is a place that holds data, such as a hospital. The target is the one that this model
is for; the others are its peers. Their data stay with them: they send gradients.</dd>
<dt>Weight (α)</dt>
<dd>How much a silo's gradient counts when the target's model takes a step.</dd>
<dt>Bias (‖b̂‖)</dt>
<dd>How far a peer's gradients stray from the target's on average; a peer with data like the
target's has little. It includes some noise of measurement.</dd>
<dt>Noise (σ)</dt>
<dd>How much a silo's gradients vary from one mini-batch to the next.</dd>
<dt>Closed form</dt>
<dd>The weight that a silo's bias and noise alone would earn it, each silo judged by itself, with
no regard to how biases cancel each other.</dd>
<dt>Epoch, round</dt>
<dd>An epoch is the target's pass over its own data; a round is one step of its model.</dd>
</dl>
</section>
</main>
</body>
</html>
"""
