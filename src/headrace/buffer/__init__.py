"""The rule made awaitable: where groups live between admission and the step that trains them."""
