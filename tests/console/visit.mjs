// Every page in both themes and sizes; an SQL session.
import assert from "node:assert/strict";
import { look, open, URL_OF, visitor } from "./browser.mjs";

const PAGES = ["/", "/sql", "/data", "/data/public", "/data/public/purchase_line", "/data/public/%3Cscript%3Ealert%281%29%3C%2Fscript%3E",
  "/statements", "/cluster", "/regions", "/cost?interval=60&level=session", "/settings"];
const browser = await open();

for (const width of [360, 1440]) {
  for (const theme of ["light", "dark"]) {
    const visit = await visitor(browser, { viewport: { width, height: 900 }, colorScheme: theme });
    for (const path of PAGES) {
      const reply = await visit.page.goto(URL_OF + path, { waitUntil: "networkidle" });
      assert.equal(reply.status(), 200, path);
      assert.equal(await visit.page.locator("h1").count(), 1, path);
      assert.deepEqual(await visit.page.locator(".problem[role=alert]").allInnerTexts(), [], path);
      const name = path.split("?")[0].replace(/%../g, "_").replaceAll("/", "_");
      await look(visit, `${width}-${theme}${name === "_" ? "_overview" : name}`);
    }
    await visit.context.close();
  }
}

// The theme that is chosen stays, whatever the system says.
{
  const visit = await visitor(browser, { viewport: { width: 1440, height: 900 }, colorScheme: "light" });
  const { page } = visit;
  await page.goto(URL_OF);
  const ground = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const light = await ground();
  await page.locator("#theme").click();
  await page.locator("#theme").click();
  assert.equal(await page.locator("html").getAttribute("data-theme"), "dark");
  assert.notEqual(await ground(), light);
  await page.goto(`${URL_OF}/cost`);
  assert.equal(await page.locator("html").getAttribute("data-theme"), "dark");

  // A keyboard gets to the content at once.
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "Skip to the content");
  await page.keyboard.press("Enter");
  assert.equal(new URL(page.url()).hash, "#main");
  await visit.context.close();
}

// An SQL session.
{
  const visit = await visitor(browser, { viewport: { width: 1440, height: 900 } });
  const { page } = visit;
  await page.goto(`${URL_OF}/sql`, { waitUntil: "networkidle" });
  const editor = page.getByRole("textbox", { name: "SQL" });
  const status = page.locator("#sql-status");
  const write = async (text) => {
    // As a person does: `fill` leaves Chromium's own styles in the text, which the policy blocks.
    await editor.focus();
    await page.keyboard.press("Control+A");
    await page.keyboard.press("Delete");
    await page.keyboard.insertText(text);
    await page.keyboard.press("Escape");
  };
  const done = async (how) => {
    await status.filter({ hasText: how }).waitFor();
  };

  // Completion knows this database's tables and columns.
  await editor.pressSequentially("SELECT * FROM purch");
  await page.locator(".cm-tooltip-autocomplete li", { hasText: "purchase_line" }).waitFor();
  await look(visit, "1440-sql-completion");
  await page.keyboard.press("Escape");

  await write("SELECT id, name, email, NULL AS nothing FROM customer ORDER BY id LIMIT 5; SELECT '<img src=x onerror=alert(4)>' AS evil");
  await page.keyboard.press("Control+Enter");
  await done("Done");
  assert.equal(await page.locator("#sql-results table").count(), 2);
  assert.equal(await page.locator("#sql-results table").first().locator("tbody tr").count(), 5);
  assert.equal(await page.locator("#sql-results img").count(), 0);
  await look(visit, "1440-sql-result");

  await write("INSERT INTO product VALUES (1000, 'x', 1)");
  await page.getByRole("button", { name: "Run" }).click();
  await done("Failed");
  assert.match(await page.locator("#sql-results").innerText(), /25006/);
  await look(visit, "1440-sql-read-only");
  await page.locator("#sql-mode").selectOption("read_write");
  await page.getByRole("button", { name: "Run" }).click();
  await done("Done");
  assert.match(await page.locator("#sql-results").innerText(), /INSERT 0 1/);

  await write("SELECT c.name, sum(l.quantity) FROM customer c JOIN purchase p ON p.customer = c.id JOIN purchase_line l ON l.purchase = p.id GROUP BY c.name");
  await page.getByRole("button", { name: "Explain", exact: true }).click();
  await done("Done");
  assert.ok((await page.locator(".plan li").count()) >= 3);
  await look(visit, "1440-sql-plan");

  await write("SELECT pg_sleep(3000)");
  await page.getByRole("button", { name: "Run" }).click();
  await page.getByRole("button", { name: "Cancel" }).click();
  await done("Failed");
  assert.match(await page.locator("#sql-results").innerText(), /57014/);
  await visit.context.close();
}

// A cap is set, shown with what is spent of it, and dropped.
{
  const visit = await visitor(browser, { viewport: { width: 360, height: 900 } });
  const { page } = visit;
  await page.goto(`${URL_OF}/cost`, { waitUntil: "networkidle" });
  const form = page.getByRole("form", { name: "A spend cap" });
  await form.locator("[name=name]").fill("reports <b>");
  await form.locator("[name=kind]").selectOption("application");
  await form.getByLabel("Which").fill("reports");
  await form.getByLabel("Dollars").fill("0.5");
  await form.locator("[name=per]").selectOption("hour");
  await form.getByLabel("When it is reached").selectOption("enforce");
  await form.getByRole("button", { name: "Set" }).click();
  const row = page.locator("tr", { hasText: "reports <b>" }).first();
  assert.match(await row.innerText(), /application[\s\S]*enforce[\s\S]*open/);
  await look(visit, "360-cost-cap");
  await page.getByRole("button", { name: "Drop cap reports <b>" }).click();
  await page.waitForURL(`${URL_OF}/cost`);
  assert.equal(await page.locator("tr", { hasText: "reports <b>" }).count(), 0);
  assert.deepEqual(visit.faults, []);
  await visit.context.close();
}

// An index that is missing leads to the statement that makes it.
{
  const visit = await visitor(browser, { viewport: { width: 1440, height: 900 } });
  const { page } = visit;
  await page.goto(`${URL_OF}/statements`, { waitUntil: "networkidle" });
  await look(visit, "1440-statements-advice");
  await page.getByRole("link", { name: "Open in SQL" }).first().click();
  await page.getByRole("textbox", { name: "SQL" }).filter({ hasText: "CREATE INDEX CONCURRENTLY ON public.visit (page)" }).waitFor();
  assert.deepEqual(visit.faults, []);
  await visit.context.close();
}

// Rows there and back.
{
  const visit = await visitor(browser, { viewport: { width: 360, height: 800 } });
  const { page } = visit;
  await page.goto(`${URL_OF}/data/public/customer`);
  const first = () => page.locator("table").first().locator("tbody tr").first().locator("td").first().innerText();
  assert.equal(await first(), "1");
  await page.getByRole("link", { name: "Next" }).click();
  assert.equal(await first(), "101");
  await page.getByRole("link", { name: "Previous" }).click();
  assert.equal(await first(), "1");
  assert.deepEqual(visit.faults, []);
  await visit.context.close();
}

// The first load, as it comes over the wire.
{
  const visit = await visitor(browser, {});
  const sizes = [];
  visit.page.on("requestfinished", (request) => sizes.push(request.sizes()));
  await visit.page.goto(`${URL_OF}/sql`, { waitUntil: "networkidle" });
  const bytes = (await Promise.all(sizes)).reduce((sum, size) => sum + size.responseBodySize, 0);
  assert.ok(bytes > 0 && bytes < 300_000, `the first load has ${bytes} bytes`);
  console.log(`first load of the largest page: ${bytes} bytes`);
}
await browser.close();
