// As far as the pages use it.
export type Node = any;
export function h(type: any, props?: any, ...children: any[]): Node;
export function render(node: Node, parent: Element): void;
export function cloneElement(node: Node, props: any): Node;
export function createContext<T>(value: T): any;
export const Fragment: any;
