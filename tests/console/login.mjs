// Log-in and log-out; a console that may only read.
import assert from "node:assert/strict";
import { look, open, URL_OF, visitor } from "./browser.mjs";

const browser = await open();
const visit = await visitor(browser, { viewport: { width: 360, height: 800 } });
const { page, context } = visit;
await page.goto(`${URL_OF}/data/public`);
assert.equal(new URL(page.url()).pathname, "/login");
await look(visit, "360-login");
const enter = async (password) => {
  await page.getByLabel("Role").fill("ada");
  await page.getByLabel("Password").fill(password);
  await page.getByRole("button", { name: "Log in" }).click();
};
await enter("wrong");
await page.getByText("password authentication failed").waitFor();
// The browser logs the refusal, and that is right.
visit.faults.splice(0, visit.faults.length, ...visit.faults.filter((fault) => !fault.includes("403")));
await look(visit, "360-login-refused");
await enter("pencil");
assert.equal(new URL(page.url()).pathname, "/data/public");
const cookies = await context.cookies();
const session = cookies.find((cookie) => cookie.name.startsWith("telesto_console"));
assert.ok(session.httpOnly && session.sameSite === "Strict");
assert.equal(await page.evaluate(() => document.cookie.includes("telesto_console")), false);

await page.goto(`${URL_OF}/sql`, { waitUntil: "networkidle" });
assert.equal(await page.locator("#sql-mode option").count(), 1);
await page.getByRole("textbox", { name: "SQL" }).focus();
await page.keyboard.insertText("SELECT session_user, 1 + 1 AS two");
await page.keyboard.press("Control+Enter");
await page.locator("#sql-status").filter({ hasText: "Done" }).waitFor();
assert.match(await page.locator("#sql-results").innerText(), /ada/);
await look(visit, "360-sql-result");

const texts = () => page.evaluate(() => Object.keys(sessionStorage).filter((name) => name.startsWith("telesto-sql")));
assert.deepEqual(await texts(), ["telesto-sql ada"]);

await page.getByRole("button", { name: "Log out" }).click();
assert.equal(new URL(page.url()).pathname, "/login");
// The next role in this tab does not find what this one wrote.
assert.deepEqual(await texts(), []);
await page.goto(`${URL_OF}/`);
assert.equal(new URL(page.url()).pathname, "/login");
await browser.close();
