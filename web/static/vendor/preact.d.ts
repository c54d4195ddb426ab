// As far as the pages use it.
export type Node = any;
export function h(type: any, props?: any, ...children: any[]): Node;
export function render(node: Node, parent: Element): void;
export const Fragment: any;
