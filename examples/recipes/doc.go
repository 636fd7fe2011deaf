// Package recipes has the code of docs/recipes.md, which is run by the examples of this package.
package recipes
