import { existsSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, expect, test } from "vitest";
import { withSecretFile } from "./secret-file.ts";

const directory = mkdtempSync(join(tmpdir(), "tendon-secret-"));
afterAll(() => rmSync(directory, { recursive: true }));

test("the secret is in the file, for its owner alone, and in nothing that is printed", async () => {
  const path = join(directory, "key");
  const made = await withSecretFile(path, async () => ({ id: "k", secret: "top secret" }));
  expect(made).toEqual({ id: "k", secret: "" });
  expect(readFileSync(path, "utf8")).toBe("top secret\n");
  expect(statSync(path).mode & 0o777).toBe(0o600);
});

test("nothing is made when the file is there already", async () => {
  const path = join(directory, "taken");
  writeFileSync(path, "mine");
  let made = 0;
  const making = withSecretFile(path, async () => ({ secret: String(++made) }));
  await expect(making).rejects.toThrow("it is there already");
  expect({ made, content: readFileSync(path, "utf8") }).toEqual({ made: 0, content: "mine" });
});

test("no file is left when nothing could be made", async () => {
  const path = join(directory, "none");
  await expect(withSecretFile(path, () => Promise.reject(new Error("refused")))).rejects.toThrow("refused");
  expect(existsSync(path)).toBe(false);
});
