"""Branches in the console: make one, change a document on it, compare, merge, decide conflicts one by one."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.serving import MINUS, Served, Tab


def make_branch(tab: Tab, name: str) -> None:
    tab.open("branches")
    tab.button("New branch").click()
    tab.dialog().get_by_label("Name").fill(name)
    tab.dialog().get_by_role("button", name="Create").click()
    tab.announced(f"Branch {name} was created")


def test_a_change_on_a_branch_is_seen_there_compared_and_merged(tab: Tab, served: Served) -> None:
    served.create("Account", {"id": "cid", "owner": "Cid", "balance": 100})
    make_branch(tab, "raise")
    expect(tab.page.get_by_text("Nothing to merge")).to_be_visible()
    expect(tab.page.locator("table.branches tr", has_text="raise")).to_contain_text("0 changes")

    tab.open("models", "Account", "documents", "cid", branch="raise")
    expect(tab.page.get_by_role("combobox", name="Branch")).to_have_value("raise")
    tab.field("/balance").fill("150")
    tab.button("Save").click()
    tab.announced("Saved")
    assert served.document("Account", "cid")["balance"] == 100
    assert served.document("Account", "cid", "raise")["balance"] == 150

    tab.open("branches", compare="raise")
    change = tab.page.locator("details.change", has_text="cid")
    row = change.locator("tbody tr", has_text="balance")
    expect(row.locator("td")).to_have_text([f"{MINUS}100", "+150"])
    tab.button("Try it (dry run)").click()
    expect(tab.page.locator(".merge .notice")).to_have_text("The merge would succeed: 1 document")
    assert served.document("Account", "cid")["balance"] == 100
    tab.button("Merge").click()
    tab.announced("raise was merged into main")
    expect(tab.page.get_by_text("Nothing to merge")).to_be_visible()
    assert served.document("Account", "cid")["balance"] == 150


def test_conflicts_are_decided_document_by_document(tab: Tab, served: Served) -> None:
    for name in ("dee", "eve"):
        served.create("Account", {"id": name, "owner": name.title(), "balance": 1})
    make_branch(tab, "disputed")
    for name in ("dee", "eve"):
        served.patch("Account", name, {"balance": 20}, "disputed")
        served.patch("Account", name, {"balance": 300})
    served.create("Account", {"id": "fay", "owner": "Fay", "balance": 5})
    tab.allowed = {409, 412}
    tab.open("branches", compare="disputed")
    tab.button("Merge").click()
    expect(tab.page.locator("form.merge .problem")).to_be_visible()

    tab.page.get_by_label("If both sides changed a document").select_option("choose")
    expect(tab.button("Merge")).to_be_disabled()
    tab.page.locator("details.change", has_text="dee").get_by_label("the version on main").check()
    tab.page.locator("details.change", has_text="eve").get_by_label("the version on disputed").check()
    tab.button("Merge").click()
    tab.announced("disputed was merged into main")
    balances = {name: served.document("Account", name)["balance"] for name in ("dee", "eve", "fay")}
    assert balances == {"dee": 300, "eve": 20, "fay": 5}


def test_a_branch_is_deleted_and_undeleted(tab: Tab, served: Served) -> None:
    make_branch(tab, "short-lived")
    tab.button("Delete short-lived").click()
    tab.dialog().get_by_role("button", name="Delete").click()
    row = tab.page.locator("table.branches tr", has_text="short-lived")
    expect(row).to_contain_text("deleted")
    row.get_by_role("button", name="Undelete").click()
    expect(row).not_to_contain_text("deleted")
    [found] = [one for one in served.get("/v1/branches")["items"] if one["name"] == "short-lived"]
    assert not found["isDeleted"]


def test_the_branch_stays_in_the_address_from_view_to_view(tab: Tab) -> None:
    make_branch(tab, "sticky")
    tab.page.get_by_role("combobox", name="Branch").select_option("sticky")
    tab.page.get_by_role("link", name="Collections").click()
    tab.page.get_by_role("link", name="Account").click()
    expect(tab.page.get_by_role("heading", level=1)).to_have_text("Account")
    assert "branch=sticky" in tab.page.url


def test_a_model_in_no_space_is_not_offered_on_a_branch(tab: Tab) -> None:
    make_branch(tab, "small")
    tab.open(branch="small")
    row = tab.page.locator("tbody tr", has_text="#org/@customers")
    expect(row).to_contain_text("only on main")
    expect(row.get_by_role("link")).to_have_count(0)
    tab.open("models", "Customer", branch="small")
    expect(tab.page.locator(".empty")).to_contain_text("Customer is not on the branch small")
    tab.page.get_by_role("link", name="Open it on main").click()
    expect(tab.page.get_by_role("link", name="c000")).to_be_visible()
