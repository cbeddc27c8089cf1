/** `npm run proto:check`, on copies of the contract that were changed by hand. */
import { spawnSync } from "node:child_process";
import { cpSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";

const root = fileURLToPath(new URL("../..", import.meta.url));
const HAND_SERVICE = "proto/tendon/v1/hand_service.proto";
let small = "";
let copy = "";

// One service and what it needs is contract enough: compilers take their time with all of it (`npm run verify` checks all).
beforeAll(() => {
  small = mkdtempSync(join(tmpdir(), "tendon-proto-check-"));
  copy = small;
  for (const path of ["proto", "scripts", "buf.yaml", "buf.gen.yaml", "package.json"]) {
    cpSync(join(root, path), join(small, path), { recursive: true });
  }
  symlinkSync(join(root, "node_modules"), join(small, "node_modules"));
  const kept = importedBy(HAND_SERVICE);
  for (const name of readdirSync(join(small, "proto/tendon/v1"))) {
    if (!kept.has(`proto/tendon/v1/${name}`)) rmSync(join(small, "proto/tendon/v1", name));
  }
  expect(proto("accept").status).toBe(0);
  expect(proto("generate").status).toBe(0);
}, 180_000);
afterAll(() => rmSync(small, { recursive: true, force: true }));
beforeEach(() => {
  copy = mkdtempSync(join(tmpdir(), "tendon-proto-check-"));
  cpSync(small, copy, { recursive: true, verbatimSymlinks: true });
});
afterEach(() => rmSync(copy, { recursive: true, force: true }));

/** A proto of ours, with those that it imports, and so on. */
function importedBy(path: string): Set<string> {
  const imports = readFileSync(join(root, path), "utf8").matchAll(/^import "(tendon\/v1\/.*)";$/gm);
  return new Set([path, ...[...imports].flatMap(([, name]) => [...importedBy(`proto/${name}`)])]);
}

function edit(path: string, from: string, to: string): void {
  const text = readFileSync(join(copy, path), "utf8");
  expect(text).toContain(from);
  writeFileSync(join(copy, path), text.replace(from, to));
}

function proto(command: string): { status: number | null; output: string } {
  const options = { cwd: copy, encoding: "utf8" } as const;
  const { status, stdout, stderr } = spawnSync(process.execPath, ["scripts/proto.mjs", command], options);
  return { status, output: stdout + stderr };
}

// Each check starts a compiler five times.
describe("the check of the contract", { timeout: 180_000 }, () => {
  test("refuses what breaks clients until the baseline is moved on purpose", () => {
    edit(HAND_SERVICE, "  rpc CopyOut(CopyOutRequest) returns (stream CopyOutResponse);\n", "");
    edit(HAND_SERVICE, "returns (stream ExecuteResponse)", "returns (ExecuteResponse)");
    edit(HAND_SERVICE, "bool already_ended = 1;", "string already_ended = 1;");
    expect(proto("generate").status).toBe(0);
    const broken = proto("check");
    expect(broken.status).not.toBe(0);
    expect(broken.output).toMatch(/RPC "CopyOut".*deleted/);
    expect(broken.output).toMatch(/RPC "Execute".*changed from server streaming/);
    expect(broken.output).toMatch(/"already_ended".*changed type/);
    expect(proto("accept").status).toBe(0);
    expect(proto("check").output).not.toMatch(/deleted|changed/);
  });

  test("lets additions pass once the generated code is what the protos give", () => {
    edit(
      HAND_SERVICE,
      "  bool already_ended = 1;\n",
      "  bool already_ended = 1;\n  // More.\n  bool more = 2;\n",
    );
    expect(proto("check")).toEqual({
      status: 1,
      output: expect.stringMatching(/proto:generate.*hand_service/),
    });
    expect(proto("generate").status).toBe(0);
    expect(proto("check")).toEqual({ status: 0, output: expect.stringContaining("in order") });
  });
});
