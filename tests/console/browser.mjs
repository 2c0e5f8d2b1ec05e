// A browser, and what is asked of every page.
import assert from "node:assert/strict";
import { chromium } from "playwright-core";
import { AxeBuilder } from "@axe-core/playwright";

export const URL_OF = process.env.URL;
const SHOTS = process.env.SHOTS;

export async function open() {
  return chromium.launch({ executablePath: process.env.CHROMIUM, args: ["--no-sandbox", "--disable-gpu"] });
}

/** A page that fails the test when it loads from elsewhere, logs an error, breaks its policy or opens a dialogue. */
export async function visitor(browser, options) {
  const context = await browser.newContext(options);
  const page = await context.newPage();
  const faults = [];
  page.on("pageerror", (error) => faults.push(`error: ${error.message}`));
  page.on("dialog", (dialog) => {
    faults.push(`dialogue: ${dialog.message()}`);
    void dialog.dismiss();
  });
  page.on("console", (message) => {
    if (message.type() === "error") faults.push(`console: ${message.text()}`);
  });
  page.on("request", (request) => {
    if (!request.url().startsWith(URL_OF) && !request.url().startsWith("data:")) faults.push(`elsewhere: ${request.url()}`);
  });
  return { context, page, faults };
}

/** Nothing serious for a screen reader, nothing wider than the screen, no fault; a picture. */
export async function look(visit, name) {
  const { page, faults } = visit;
  const found = await new AxeBuilder({ page }).withTags(["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]).analyze();
  const serious = found.violations.filter((rule) => ["serious", "critical"].includes(rule.impact));
  const shown = serious.map((rule) => `${rule.id}: ${rule.nodes.map((node) => node.target + " " + node.failureSummary).join("; ")}`);
  assert.deepEqual(shown, [], `${name}: accessibility`);
  const width = await page.evaluate(() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]);
  assert.ok(width[0] <= width[1], `${name}: the page is ${width[0]} px wide on a screen of ${width[1]}`);
  assert.deepEqual(faults, [], `${name}: faults`);
  await page.screenshot({ path: `${SHOTS}/${name}.png`, fullPage: true });
}
