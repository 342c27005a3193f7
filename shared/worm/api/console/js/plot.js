// uPlot, loaded when the first plot is shown, in the colors of the theme.
import { html, useEffect, useRef } from "./preact.js";

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** `series`: `[{label, values, kind: "line" | "bars"}]` over `xs`; `text` says the same in words. */
export function Plot({ xs, series, text, height = 160, isTime = false, xValue, yValue }) {
  const holder = useRef();
  const stamp = JSON.stringify([xs, series.map((one) => one.values)]);
  useEffect(() => {
    let plot = null;
    let isGone = false;
    const draw = async () => {
      const { default: UPlot } = await import("../vendor/uplot.js");
      if (isGone || !holder.current) return;
      plot?.destroy();
      plot = new UPlot(options(UPlot), [xs, ...series.map((one) => one.values)], holder.current);
    };
    const options = (UPlot) => {
      const axis = {
        stroke: color("--muted"),
        grid: { stroke: color("--line"), width: 1 },
        ticks: { stroke: color("--line"), width: 1 },
        font: "12px system-ui, sans-serif",
      };
      return {
        width: holder.current.clientWidth,
        height,
        legend: { show: false },
        padding: [8, 28, 0, 0], // room for the last label
        cursor: { drag: { x: false, y: false } },
        scales: { x: { time: isTime }, y: { range: (_, __, most) => [0, Math.max(most * 1.1, Number.EPSILON)] } },
        axes: [
          { ...axis, space: 72, ...(xValue ? { values: (_, ticks) => ticks.map(xValue) } : {}) },
          { ...axis, size: 64, space: 22, ...(yValue ? { values: (_, ticks) => ticks.map(yValue) } : {}) },
        ],
        series: [
          {},
          ...series.map((one) => ({
            label: one.label,
            stroke: color("--accent"),
            fill: one.kind === "bars" ? color("--accent") : color("--accent-soft"),
            width: one.kind === "bars" ? 0 : 2,
            points: { show: one.kind !== "bars", size: 5 },
            ...(one.kind === "bars" ? { paths: UPlot.paths.bars({ size: [0.7, 24] }) } : {}),
          })),
        ],
      };
    };
    draw();
    const resized = new ResizeObserver(([entry]) =>
      plot?.setSize({ width: Math.floor(entry.contentRect.width), height }),
    );
    resized.observe(holder.current);
    const themed = new MutationObserver(draw);
    themed.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    scheme.addEventListener("change", draw);
    return () => {
      isGone = true;
      resized.disconnect();
      themed.disconnect();
      scheme.removeEventListener("change", draw);
      plot?.destroy();
    };
  }, [stamp, height]);
  return html`<div class="plot" role="img" aria-label=${text} ref=${holder} style=${{ height: `${height}px` }}></div>`;
}
