/** What users say, as the SDK's program reads it: one message at a time, until the program ends. */
import type { Json } from "../../event-payload.ts";
import type { SDKUserMessage } from "./sdk.ts";

export class PromptQueue implements AsyncIterable<SDKUserMessage> {
  private readonly messages: SDKUserMessage[] = [];
  private wake = () => {};
  private ended = false;

  /** Something has to be said, or the program would wait for ever. */
  push(said: readonly Json[]): void {
    const content = said.length > 0 ? said : [{ type: "text", text: "(nothing new was said)" }];
    const message = { role: "user", content };
    this.messages.push({ type: "user", message, parent_tool_use_id: null } as unknown as SDKUserMessage);
    this.wake();
  }

  end(): void {
    this.ended = true;
    this.wake();
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<SDKUserMessage> {
    for (;;) {
      for (let message = this.messages.shift(); message; message = this.messages.shift()) yield message;
      if (this.ended) return;
      await new Promise<void>((resolve) => {
        this.wake = resolve;
      });
    }
  }
}
