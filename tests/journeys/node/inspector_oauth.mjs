// The MCP Inspector in a real browser: connects, is sent to the consent page, and calls nothing before a person agreed.

import { mkdirSync } from "node:fs";
import { open } from "./browser.mjs";

const target = JSON.parse(process.argv[2]); // browser, profile, inspector, key, pictures
mkdirSync(target.pictures, { recursive: true });
const page = await open(target.browser, target.profile);
const click = (selector) => page.evaluate(`document.querySelector(${JSON.stringify(selector)}).click()`);
const seen = {};
try {
  await page.resize(1200, 800);
  await page.send("Page.navigate", { url: target.inspector });
  await page.until("document.querySelector('input[role=switch]')");
  await click("input[role=switch]");
  await page.until("document.querySelector('[data-testid=\"consent.key\"]')");
  seen.asked = await page.evaluate("document.body.innerText");
  await page.screenshot(`${target.pictures}/key.png`);
  await page.evaluate(`document.querySelector('[name=key]').value = ${JSON.stringify(target.key)}`);
  await click("[data-testid='consent.key'][value=key], button[value=key]");
  await page.until("document.querySelector('button[value=allow]')");
  seen.consent = await page.evaluate("document.body.innerText");
  for (const [width, scheme] of [[1200, "light"], [1200, "dark"], [360, "light"], [360, "dark"]]) {
    await page.resize(width, 800, scheme);
    await page.screenshot(`${target.pictures}/consent-${width}-${scheme}.png`);
    if (width === 360) seen.overflow = await page.evaluate("document.documentElement.scrollWidth > innerWidth");
  }
  await page.resize(1200, 800);
  await click("button[value=allow]");
  await page.until("document.querySelector('[data-testid=connection-status]')?.dataset.status === 'connected'");
  seen.connected = await page.evaluate("document.body.innerText");
  await page.screenshot(`${target.pictures}/connected.png`);
  process.stdout.write(JSON.stringify(seen));
} finally {
  page.close();
}
process.exit(0);
