// What docs/actors.md shows of save() and load(): the actor's process aborts, and its next life has the sum.
#include <cstdlib>
#include <iostream>
#include <troupe/session.hpp>

using namespace std::chrono_literals;

struct Account {
  std::int64_t balance = 0;

  std::int64_t deposit(std::int64_t amount) { return balance += amount; }
  std::int64_t look() const { return balance; }
  void crash() const { std::abort(); }

  std::int64_t save() const { return balance; }
  void load(std::int64_t saved) { balance = saved; }
};

int main(int argc, char** argv) {
  auto session = troupe::init(argc, argv);
  auto account = session.spawn<Account>({.isolated = true, .max_restarts = -1});
  account.call<&Account::deposit>(5).get(10s);
  try {
    account.call<&Account::crash>().get(10s);
  } catch (const troupe::Unavailable&) {                           // it may have run; another life follows
    std::cout << account.call<&Account::look>().get(10s) << "\n";  // 5
  }
}
