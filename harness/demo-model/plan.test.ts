import { describe, expect, it } from "vitest";
import { MAX_DIRECTIVES, parseDirectives } from "./directives.ts";
import { DEMO_NOTICE, MAX_REPEATED_CHARS, type PlannedBlock, plan, type RequestMessage } from "./plan.ts";

const TOOLS = ["bash", "read", "write"];
const user = (content: RequestMessage["content"]): RequestMessage => ({ role: "user", content });

/** Plays the conversation on: every call gets the next of `results`; gives the last response. */
function play(ask: string, results: [string, boolean?][], toolNames = TOOLS): PlannedBlock[][] {
  const messages: RequestMessage[] = [user(ask)];
  const responses: PlannedBlock[][] = [];
  let callCount = 0;
  for (;;) {
    const blocks = plan(messages, toolNames);
    responses.push(blocks);
    const calls = blocks.filter((block) => block.type === "tool_use");
    if (calls.length === 0) return responses;
    const ids = calls.map(() => `toolu_${callCount++}`);
    messages.push({
      role: "assistant",
      content: blocks.map((block) => ({ ...block, ...(block.type === "tool_use" && { id: ids.shift()! }) })),
    });
    const answered = calls.map((_, i) => {
      const [content, is_error = false] = results.shift() ?? ["?"];
      return {
        type: "tool_result",
        tool_use_id: `toolu_${callCount - calls.length + i}`,
        content: [{ type: "text", text: content }],
        is_error,
      };
    });
    messages.push(user(answered.reverse()));
  }
}

const finalText = (responses: PlannedBlock[][]) => {
  const block = responses.at(-1)?.[0];
  return block?.type === "text" ? block.text : "";
};

describe("the demo's plan", () => {
  it("says that it is no model and explains itself when it is asked anything else", () => {
    const [answer] = plan([user("What is the meaning of life?")], TOOLS);
    expect(answer).toMatchObject({ type: "text" });
    expect(answer?.type === "text" && answer.text.startsWith(DEMO_NOTICE)).toBe(true);
    expect(answer?.type === "text" && answer.text).toContain("run: COMMAND");
  });

  it("runs a command and repeats its output, saying once that it is a demo", () => {
    const responses = play("run: uname -a", [["Linux box 6.1"]]);
    expect(responses).toEqual([
      [
        { type: "text", text: DEMO_NOTICE },
        { type: "tool_use", name: "bash", input: { command: "uname -a" } },
      ],
      [{ type: "text", text: "`uname -a` printed:\nLinux box 6.1" }],
    ]);
  });

  it.each(["run: a\nrun: b", "run: a && also: b"])("runs two commands in one response: %j", (ask) => {
    const responses = play(ask, [["A"], ["B"]]);
    expect(responses[0]!.slice(1)).toEqual([
      { type: "tool_use", name: "bash", input: { command: "a" } },
      { type: "tool_use", name: "bash", input: { command: "b" } },
    ]);
    expect(finalText(responses)).toBe("`a` printed:\nA\n\n`b` printed:\nB");
  });

  it("writes a file, reads it back and repeats the content", () => {
    const responses = play("write: notes.txt = one\\ntwo = 2", [["wrote 11 bytes"], ["one\ntwo = 2"]]);
    expect(responses.slice(0, 2).map((blocks) => blocks.at(-1))).toEqual([
      { type: "tool_use", name: "write", input: { file_path: "notes.txt", content: "one\ntwo = 2" } },
      { type: "tool_use", name: "read", input: { file_path: "notes.txt" } },
    ]);
    expect(finalText(responses)).toBe("Wrote notes.txt.\n\nnotes.txt contains:\none\ntwo = 2");
  });

  it("reads back only what was written", () => {
    const responses = play("write: a = 1\nwrite: b = 2", [["no space", true], ["ok"], ["2"]]);
    expect(responses[1]).toEqual([{ type: "tool_use", name: "read", input: { file_path: "b" } }]);
    expect(finalText(responses)).toBe("write of a failed:\nno space\n\nWrote b.\n\nb contains:\n2");
  });

  it("tells that a command failed and with what", () => {
    expect(finalText(play("run: false", [["exit 1", true]]))).toBe("`false` failed:\nexit 1");
  });

  it("says which tool the request does not offer", () => {
    expect(finalText(play("run: ls", [], ["read"]))).toBe(
      `${DEMO_NOTICE}\n\nThis agent offers no \`bash\` tool, so I left out: \`ls\`.`,
    );
    const writeOnly = play("write: a = 1", [["ok"]], ["write"]);
    expect(finalText(writeOnly)).toContain("offers no `read` tool");
  });

  it("calls any tool by its whole name and repeats the answer", () => {
    const ask = `call: mcp__notes__add {"text": "a b", "n": [1]}\ncall: mcp__notes__list`;
    const tools = ["mcp__notes__add", "mcp__notes__list"];
    const responses = play(ask, [["added"], ["", false]], tools);
    expect(responses[0]!.slice(1)).toEqual([
      { type: "tool_use", name: "mcp__notes__add", input: { text: "a b", n: [1] } },
      { type: "tool_use", name: "mcp__notes__list", input: {} },
    ]);
    expect(finalText(responses)).toBe(
      "`mcp__notes__add` answered:\nadded\n\n`mcp__notes__list` answered nothing.",
    );
  });

  it("says of a call what is wrong with it", () => {
    expect(finalText(play("call: nonesuch {}", []))).toContain("offers no `nonesuch` tool");
    expect(finalText(play("call: bash [1]", []))).toContain("What follows `call: bash` is no JSON object");
  });

  it("looks only at the user's last words and what was called since", () => {
    const messages: RequestMessage[] = [
      user("run: old"),
      { role: "assistant", content: [{ type: "tool_use", id: "toolu_old", name: "bash" }] },
      user([
        { type: "tool_result", tool_use_id: "toolu_old", content: "interrupted", is_error: true },
        { type: "text", text: "run: new" },
      ]),
      { role: "system", content: "Be brief." },
    ];
    expect(plan(messages, TOOLS)).toEqual([{ type: "tool_use", name: "bash", input: { command: "new" } }]);
  });

  it("takes messages that arrived together as one request", () => {
    const blocks = plan([user("run: a"), user("run: b")], TOOLS);
    expect(blocks.filter((block) => block.type === "tool_use")).toHaveLength(2);
  });

  it("repeats long outputs only up to a bound, never half a character", () => {
    const answer = finalText(play("run: yes", [[`x${"😀".repeat(MAX_REPEATED_CHARS)}`]]));
    expect(answer.length).toBeLessThan(MAX_REPEATED_CHARS + 100);
    expect(answer).toMatch(/more characters\)$/);
    expect(answer).not.toMatch(/\p{Surrogate}/u);
  });

  it("is deterministic", () => {
    const messages = [user("run: a\nwrite: b = c\nread: d")];
    expect(plan(messages, TOOLS)).toEqual(plan(structuredClone(messages), TOOLS));
  });
});

describe("the demo's grammar", () => {
  it.each([
    ["run:", []],
    ["write: nothing to write", []],
    ["write: = x", []],
    ["please run: ls", []],
    ["RUN :  ls -l  ", [{ kind: "run", command: "ls -l" }]],
    ["run: a && b", [{ kind: "run", command: "a && b" }]],
    ["write: a =", [{ kind: "write", path: "a", content: "" }]],
    ["call:", []],
    [`call: t__u {"a": 1}`, [{ kind: "call", tool: "t__u", input: { a: 1 } }]],
    [`Call: t{"a":{}}`, [{ kind: "call", tool: "t", input: { a: {} } }]],
    ["call: t", [{ kind: "call", tool: "t", input: {} }]],
    ["call: t {a}", [{ kind: "call", tool: "t", input: undefined }]],
  ])("reads %j", (line, directives) => {
    expect(parseDirectives(line)).toEqual(directives);
  });

  it("takes a bounded number of requests", () => {
    expect(parseDirectives("run: x\n".repeat(MAX_DIRECTIVES * 2))).toHaveLength(MAX_DIRECTIVES);
  });
});
