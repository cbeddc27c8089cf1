/** The messages of a request while they are put together, with what they weigh. */
import { blockWeight } from "./block-weight.ts";

/** A message whose blocks are JSON texts. */
export interface HistoryMessage {
  readonly role: "user" | "assistant" | "system";
  readonly blocks: string[];
}

/** One block, wherever its message stands by now. */
export interface BlockPlace {
  readonly message: HistoryMessage;
  readonly block: number;
}

export class MessageList {
  messages: HistoryMessage[] = [];
  weight = 0;

  get last(): HistoryMessage | undefined {
    return this.messages.at(-1);
  }

  /** Goes on with the last message where that has the same role. No blocks are no message. */
  say(role: "user" | "assistant", blocks: readonly string[]): void {
    if (blocks.length === 0) return;
    if (this.last?.role === role) this.extend(this.last, blocks);
    else this.push(role, blocks);
  }

  push(role: HistoryMessage["role"], blocks: readonly string[]): void {
    const message: HistoryMessage = { role, blocks: [] };
    this.messages.push(message);
    this.extend(message, blocks);
  }

  replace({ message, block }: BlockPlace, text: string): void {
    this.weight += blockWeight(text) - blockWeight(message.blocks[block]!);
    message.blocks[block] = text;
  }

  /** The last block; undefined while there is none. */
  end(): BlockPlace | undefined {
    return this.last && { message: this.last, block: this.last.blocks.length - 1 };
  }

  /** What comes after this message, where that begins with an answer of the model; else nothing. */
  after(message: HistoryMessage): HistoryMessage[] {
    const index = this.messages.indexOf(message);
    const tail = index < 0 ? [] : this.messages.slice(index + 1);
    return tail[0]?.role === "assistant" ? tail : [];
  }

  /** Puts others in place of all messages but these, which stand at the end. */
  replaceAllBefore(tail: readonly HistoryMessage[], head: readonly HistoryMessage[]): void {
    this.messages = [...head, ...tail];
    this.weight = this.messages.reduce((sum, message) => sum + messageWeight(message), 0);
  }

  private extend(message: HistoryMessage, blocks: readonly string[]): void {
    message.blocks.push(...blocks);
    for (const block of blocks) this.weight += blockWeight(block);
  }
}

export function messageWeight({ blocks }: HistoryMessage): number {
  return blocks.reduce((sum, block) => sum + blockWeight(block), 0);
}

export function samePlace(a: BlockPlace | undefined, b: BlockPlace | undefined): boolean {
  return a !== undefined && b !== undefined && a.message === b.message && a.block === b.block;
}
