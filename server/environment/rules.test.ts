import { readFileSync } from "node:fs";
import { create, fromJsonString, type MessageInitShape } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import { isTendonError } from "../../kit/errors.ts";
import { EnvironmentSpecSchema, NetworkMode } from "../../proto/gen/tendon/v1/environment_pb.js";
import { checkEnvironmentSpec } from "./rules.ts";

/** The field that is wrong, or undefined when none is. */
function wrongField(init: MessageInitShape<typeof EnvironmentSpecSchema>): string | undefined {
  try {
    checkEnvironmentSpec(create(EnvironmentSpecSchema, { name: "x", ...init }));
    return undefined;
  } catch (error) {
    if (isTendonError(error, "INVALID_FIELD")) return error.metadata.field;
    throw error;
  }
}

test("labels and variables have names that programs can use", () => {
  expect(wrongField({ labels: { "gpu/type": "a100", zone: "" } })).toBeUndefined();
  expect(wrongField({ labels: { "": "x" } })).toBe('spec.labels[""]');
  expect(wrongField({ labels: { a: "x".repeat(64) } })).toBe('spec.labels["a"]');
  expect(wrongField({ variables: { _PATH: "x", a1: "" } })).toBeUndefined();
  for (const name of ["1a", "a-b", "", "a=b"]) {
    expect(wrongField({ variables: { [name]: "x" } })).toBe(`spec.variables["${name}"]`);
  }
  expect(wrongField({ variables: { A: "a\0b" } })).toBe('spec.variables["A"]');
});

test("hosts are names or whole subdomains, and only count in a limited network", () => {
  const field = (host: string) =>
    wrongField({ network: { mode: NetworkMode.LIMITED, allowedHosts: ["ok.example", host] } });
  for (const host of ["example.com", "*.example.com", "localhost", "10.0.0.1", "_dmarc.example"]) {
    expect(field(host)).toBeUndefined();
  }
  for (const host of ["*", "a.*.example", "https://a.example", "a b", "-a.example", "a..b", "a.example."]) {
    expect(field(host)).toBe("spec.network.allowed_hosts[1]");
  }
  const elsewhere = { network: { mode: NetworkMode.NONE, allowedHosts: ["a.example"] } };
  expect(wrongField(elsewhere)).toBe("spec.network.allowed_hosts");
});

test("MCP servers behind a pool are listed by host and port, and a pool is needed", () => {
  const field = (host: string) => wrongField({ pool: "lab", mcpTunnelHosts: ["mcp.corp", host] });
  for (const host of ["mcp.corp:8443", "*.corp", "*.corp:*", "10.1.2.3", "[fd00::1]:8443"])
    expect(field(host)).toBeUndefined();
  for (const host of ["*", "mcp.corp:0", "*.10.0.0.1", "https://mcp.corp", "mcp.corp/path", "a b"])
    expect(field(host)).toBe("spec.mcp_tunnel_hosts[1]");
  expect(wrongField({ mcpTunnelHosts: ["mcp.corp"] })).toBe("spec.mcp_tunnel_hosts");
});

test("an environment that could never give a hand is refused", () => {
  expect(wrongField({ driver: "docker" })).toBe("spec.image");
  expect(wrongField({ driver: "docker", image: "debian:12" })).toBeUndefined();
  expect(wrongField({ driver: "a-newer-one" })).toBeUndefined();
  expect(wrongField({ driver: "process", image: "debian:12" })).toBe("spec.image");
  expect(wrongField({ driver: "process", container: { pull: true } })).toBe("spec.container");
  expect(wrongField({ driver: "process", container: {} })).toBeUndefined();
  expect(wrongField({ network: { mode: NetworkMode.LIMITED } })).toBe("spec.network.allowed_hosts");
  expect(wrongField({ network: { mode: NetworkMode.NONE } })).toBeUndefined();
});

test("the file that the documentation shows is one that is taken", () => {
  const page = readFileSync(new URL("../../docs/operate.md", import.meta.url), "utf8");
  const example = /```json\n(\{.*?\n\})\n```/s.exec(page)?.[1] ?? "";
  const spec = fromJsonString(EnvironmentSpecSchema, example);
  expect(() => checkEnvironmentSpec(spec)).not.toThrow();
  expect(spec.network?.mode).toBe(NetworkMode.LIMITED);
});

test("a pool has a plain name and an idle time has a bound", () => {
  expect(wrongField({ pool: "gpu-1" })).toBeUndefined();
  expect(wrongField({ pool: "GPU 1" })).toBe("spec.pool");
  expect(wrongField({ idleTimeoutMs: 31n * 86_400_000n })).toBe("spec.idle_timeout_ms");
});
