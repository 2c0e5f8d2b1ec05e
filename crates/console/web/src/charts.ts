// The charts of the last hour. What they show stands in telesto_history.
import uPlot from "uplot";
import { get, isRows, type Part } from "./api";

const EVERY_MS = 10_000;
/** What the time axis shows at least, seconds. */
const LEAST_SPAN = 600;

interface Chart {
  id: string;
  series: { label: string; color: string; of: (row: Row) => number | null }[];
  log?: boolean;
  range?: [number, number];
}
type Row = (name: string) => number | null;

const per = (row: Row, name: string): number | null => {
  const seconds = row("seconds");
  const value = row(name);
  return seconds && value !== null ? value / seconds : null;
};
const share = (row: Row, part: string, all: string): number | null => {
  const of = row(all);
  const some = row(part);
  return of && some !== null ? (100 * some) / of : null;
};

const charts: Chart[] = [
  {
    id: "chart-rate",
    series: [
      { label: "reads", color: "--read", of: (row) => per(row, "reads") },
      { label: "writes", color: "--write", of: (row) => per(row, "writes") },
      { label: "failures", color: "--ill", of: (row) => per(row, "failures") },
    ],
  },
  {
    id: "chart-latency",
    log: true,
    series: [
      { label: "read p50", color: "--read-soft", of: (row) => row("read_p50_ms") },
      { label: "read p99", color: "--read", of: (row) => row("read_p99_ms") },
      { label: "write p50", color: "--write-soft", of: (row) => row("write_p50_ms") },
      { label: "write p99", color: "--write", of: (row) => row("write_p99_ms") },
    ],
  },
  {
    id: "chart-dollars",
    series: [
      {
        label: "$/h",
        color: "--money",
        of: (row) => {
          const rate = per(row, "dollars");
          return rate === null ? null : rate * 3600;
        },
      },
    ],
  },
  {
    id: "chart-promise",
    range: [0, 100],
    series: [
      { label: "reads ≤ 50 ms", color: "--read", of: (row) => share(row, "reads_in_time", "reads") },
      { label: "writes ≤ 500 ms", color: "--write", of: (row) => share(row, "writes_in_time", "writes") },
    ],
  },
];

const color = (name: string): string => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const drawn = new Map<string, uPlot>();
let rows: Row[] = [];

function data(chart: Chart): uPlot.AlignedData {
  const at = rows.map((row) => row("at") ?? 0);
  return [at, ...chart.series.map((series) => rows.map(series.of))] as uPlot.AlignedData;
}

function draw(chart: Chart): void {
  const place = document.getElementById(chart.id);
  if (!place) return;
  drawn.get(chart.id)?.destroy();
  const axis = { stroke: color("--quiet"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false } };
  const short = (value: number): string => {
    if (value === 0) return "0";
    return Math.abs(value) >= 0.01 && Math.abs(value) < 100_000 ? String(+value.toPrecision(3)) : value.toExponential(0);
  };
  const options: uPlot.Options = {
    width: place.clientWidth,
    height: 170,
    cursor: { y: false },
    legend: { live: true },
    scales: {
      x: {
        time: true,
        // Before the first point there is neither end.
        range: (_, min, max): [number, number] => {
          const end = max || Date.now() / 1000;
          return [Math.min(min || end, end - LEAST_SPAN), end];
        },
      },
      y: chart.log
        ? { distr: 3 }
        : { range: (_, __, max): [number, number] => chart.range ?? [0, max > 0 ? max * 1.05 : 1] },
    },
    axes: [
      { ...axis, space: 70 },
      {
        ...axis,
        // Of a logarithmic axis the tens alone.
        grid: { ...axis.grid, filter: (_: uPlot, splits: number[]) => splits.map((at) => (!chart.log || Number.isInteger(Math.log10(at)) ? at : null)) },
        size: 54, values: (_, splits) => splits.map((split) => (split === null ? "" : short(split))),
      },
    ],
    series: [
      {},
      ...chart.series.map((series) => ({
        label: series.label,
        stroke: color(series.color),
        width: 1.5,
        points: { size: 4 },
        value: (_: uPlot, value: number | null) => (value === null ? "–" : short(value)),
      })),
    ],
  };
  drawn.set(chart.id, new uPlot(options, data(chart), place));
}

async function refresh(): Promise<void> {
  // Nobody asked: it must not keep a log-in that is left alone from ending.
  const { history } = await get<{ history: Part }>("/history", { "x-unasked": "1" });
  if (!isRows(history)) return;
  const places = new Map(history.columns.map((column, place) => [column.name, place]));
  rows = history.rows.map((row) => (name: string) => {
    const value = row[places.get(name) ?? -1];
    return value === null || value === undefined ? null : Number(value);
  });
  for (const chart of charts) {
    const plot = drawn.get(chart.id);
    if (plot) plot.setData(data(chart));
    else draw(chart);
  }
}

const redraw = (): void => charts.forEach(draw);
document.addEventListener("theme", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
let resized = 0;
addEventListener("resize", () => {
  clearTimeout(resized);
  resized = window.setTimeout(redraw, 150);
});

// A page that nobody looks at asks for nothing; one that cannot reach the server tries again.
const loop = async (): Promise<void> => {
  if (document.visibilityState === "visible") await refresh().catch(() => undefined);
  setTimeout(() => void loop(), EVERY_MS);
};
void loop();
