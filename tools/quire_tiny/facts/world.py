"""Countries: capital, continent, language, currency."""

from __future__ import annotations

from tools.quire_tiny.question import Fact, facts_from, rows

# country: capital, continent, main language, currency
COUNTRIES = """
Afghanistan: Kabul, Asia, Pashto, afghani
Albania: Tirana, Europe, Albanian, lek
Algeria: Algiers, Africa, Arabic, dinar
Andorra: Andorra la Vella, Europe, Catalan, euro
Angola: Luanda, Africa, Portuguese, kwanza
Argentina: Buenos Aires, South America, Spanish, peso
Armenia: Yerevan, Asia, Armenian, dram
Australia: Canberra, Oceania, English, dollar
Austria: Vienna, Europe, German, euro
Azerbaijan: Baku, Asia, Azerbaijani, manat
the Bahamas: Nassau, North America, English, dollar
Bahrain: Manama, Asia, Arabic, dinar
Bangladesh: Dhaka, Asia, Bengali, taka
Barbados: Bridgetown, North America, English, dollar
Belarus: Minsk, Europe, Belarusian, ruble
Belgium: Brussels, Europe, Dutch, euro
Belize: Belmopan, North America, English, dollar
Benin: Porto-Novo, Africa, French, franc
Bhutan: Thimphu, Asia, Dzongkha, ngultrum
Bolivia: Sucre, South America, Spanish, boliviano
Bosnia and Herzegovina: Sarajevo, Europe, Bosnian, mark
Botswana: Gaborone, Africa, English, pula
Brazil: Brasilia, South America, Portuguese, real
Brunei: Bandar Seri Begawan, Asia, Malay, dollar
Bulgaria: Sofia, Europe, Bulgarian, euro
Burkina Faso: Ouagadougou, Africa, French, franc
Burundi: Gitega, Africa, Kirundi, franc
Cambodia: Phnom Penh, Asia, Khmer, riel
Cameroon: Yaounde, Africa, French, franc
Canada: Ottawa, North America, English, dollar
Chad: N'Djamena, Africa, French, franc
Chile: Santiago, South America, Spanish, peso
China: Beijing, Asia, Chinese, yuan
Colombia: Bogota, South America, Spanish, peso
Costa Rica: San Jose, North America, Spanish, colon
Croatia: Zagreb, Europe, Croatian, euro
Cuba: Havana, North America, Spanish, peso
Cyprus: Nicosia, Europe, Greek, euro
the Czech Republic: Prague, Europe, Czech, koruna
Denmark: Copenhagen, Europe, Danish, krone
Djibouti: Djibouti, Africa, French, franc
the Dominican Republic: Santo Domingo, North America, Spanish, peso
Ecuador: Quito, South America, Spanish, dollar
Egypt: Cairo, Africa, Arabic, pound
El Salvador: San Salvador, North America, Spanish, dollar
Eritrea: Asmara, Africa, Tigrinya, nakfa
Estonia: Tallinn, Europe, Estonian, euro
Ethiopia: Addis Ababa, Africa, Amharic, birr
Fiji: Suva, Oceania, English, dollar
Finland: Helsinki, Europe, Finnish, euro
France: Paris, Europe, French, euro
Gabon: Libreville, Africa, French, franc
the Gambia: Banjul, Africa, English, dalasi
Georgia: Tbilisi, Asia, Georgian, lari
Germany: Berlin, Europe, German, euro
Ghana: Accra, Africa, English, cedi
Greece: Athens, Europe, Greek, euro
Guatemala: Guatemala City, North America, Spanish, quetzal
Guinea: Conakry, Africa, French, franc
Guyana: Georgetown, South America, English, dollar
Haiti: Port-au-Prince, North America, Haitian Creole, gourde
Honduras: Tegucigalpa, North America, Spanish, lempira
Hungary: Budapest, Europe, Hungarian, forint
Iceland: Reykjavik, Europe, Icelandic, krona
India: New Delhi, Asia, Hindi, rupee
Indonesia: Jakarta, Asia, Indonesian, rupiah
Iran: Tehran, Asia, Persian, rial
Iraq: Baghdad, Asia, Arabic, dinar
Ireland: Dublin, Europe, English, euro
Israel: Jerusalem, Asia, Hebrew, shekel
Italy: Rome, Europe, Italian, euro
Jamaica: Kingston, North America, English, dollar
Japan: Tokyo, Asia, Japanese, yen
Jordan: Amman, Asia, Arabic, dinar
Kazakhstan: Astana, Asia, Kazakh, tenge
Kenya: Nairobi, Africa, Swahili, shilling
Kuwait: Kuwait City, Asia, Arabic, dinar
Kyrgyzstan: Bishkek, Asia, Kyrgyz, som
Laos: Vientiane, Asia, Lao, kip
Latvia: Riga, Europe, Latvian, euro
Lebanon: Beirut, Asia, Arabic, pound
Lesotho: Maseru, Africa, Sesotho, loti
Liberia: Monrovia, Africa, English, dollar
Libya: Tripoli, Africa, Arabic, dinar
Liechtenstein: Vaduz, Europe, German, franc
Lithuania: Vilnius, Europe, Lithuanian, euro
Luxembourg: Luxembourg, Europe, Luxembourgish, euro
Madagascar: Antananarivo, Africa, Malagasy, ariary
Malawi: Lilongwe, Africa, English, kwacha
Malaysia: Kuala Lumpur, Asia, Malay, ringgit
the Maldives: Male, Asia, Dhivehi, rufiyaa
Mali: Bamako, Africa, Bambara, franc
Malta: Valletta, Europe, Maltese, euro
Mauritania: Nouakchott, Africa, Arabic, ouguiya
Mauritius: Port Louis, Africa, English, rupee
Mexico: Mexico City, North America, Spanish, peso
Moldova: Chisinau, Europe, Romanian, leu
Monaco: Monaco, Europe, French, euro
Mongolia: Ulaanbaatar, Asia, Mongolian, tugrik
Montenegro: Podgorica, Europe, Montenegrin, euro
Morocco: Rabat, Africa, Arabic, dirham
Mozambique: Maputo, Africa, Portuguese, metical
Myanmar: Naypyidaw, Asia, Burmese, kyat
Namibia: Windhoek, Africa, English, dollar
Nepal: Kathmandu, Asia, Nepali, rupee
the Netherlands: Amsterdam, Europe, Dutch, euro
New Zealand: Wellington, Oceania, English, dollar
Nicaragua: Managua, North America, Spanish, cordoba
Niger: Niamey, Africa, French, franc
Nigeria: Abuja, Africa, English, naira
North Korea: Pyongyang, Asia, Korean, won
North Macedonia: Skopje, Europe, Macedonian, denar
Norway: Oslo, Europe, Norwegian, krone
Oman: Muscat, Asia, Arabic, rial
Pakistan: Islamabad, Asia, Urdu, rupee
Panama: Panama City, North America, Spanish, balboa
Papua New Guinea: Port Moresby, Oceania, Tok Pisin, kina
Paraguay: Asuncion, South America, Spanish, guarani
Peru: Lima, South America, Spanish, sol
the Philippines: Manila, Asia, Filipino, peso
Poland: Warsaw, Europe, Polish, zloty
Portugal: Lisbon, Europe, Portuguese, euro
Qatar: Doha, Asia, Arabic, riyal
Romania: Bucharest, Europe, Romanian, leu
Russia: Moscow, Europe, Russian, ruble
Rwanda: Kigali, Africa, Kinyarwanda, franc
Samoa: Apia, Oceania, Samoan, tala
Saudi Arabia: Riyadh, Asia, Arabic, riyal
Senegal: Dakar, Africa, French, franc
Serbia: Belgrade, Europe, Serbian, dinar
Sierra Leone: Freetown, Africa, English, leone
Singapore: Singapore, Asia, English, dollar
Slovakia: Bratislava, Europe, Slovak, euro
Slovenia: Ljubljana, Europe, Slovene, euro
Somalia: Mogadishu, Africa, Somali, shilling
South Africa: Pretoria, Africa, English, rand
South Korea: Seoul, Asia, Korean, won
South Sudan: Juba, Africa, English, pound
Spain: Madrid, Europe, Spanish, euro
Sri Lanka: Colombo, Asia, Sinhala, rupee
Sudan: Khartoum, Africa, Arabic, pound
Suriname: Paramaribo, South America, Dutch, dollar
Sweden: Stockholm, Europe, Swedish, krona
Switzerland: Bern, Europe, German, franc
Syria: Damascus, Asia, Arabic, pound
Taiwan: Taipei, Asia, Chinese, dollar
Tajikistan: Dushanbe, Asia, Tajik, somoni
Tanzania: Dodoma, Africa, Swahili, shilling
Thailand: Bangkok, Asia, Thai, baht
Togo: Lome, Africa, French, franc
Tonga: Nuku'alofa, Oceania, Tongan, pa'anga
Tunisia: Tunis, Africa, Arabic, dinar
Turkey: Ankara, Asia, Turkish, lira
Turkmenistan: Ashgabat, Asia, Turkmen, manat
Uganda: Kampala, Africa, English, shilling
Ukraine: Kyiv, Europe, Ukrainian, hryvnia
the United Arab Emirates: Abu Dhabi, Asia, Arabic, dirham
the United Kingdom: London, Europe, English, pound
the United States: Washington, North America, English, dollar
Uruguay: Montevideo, South America, Spanish, peso
Uzbekistan: Tashkent, Asia, Uzbek, som
Vanuatu: Port Vila, Oceania, Bislama, vatu
Venezuela: Caracas, South America, Spanish, bolivar
Vietnam: Hanoi, Asia, Vietnamese, dong
Yemen: Sanaa, Asia, Arabic, rial
Zambia: Lusaka, Africa, English, kwacha
Zimbabwe: Harare, Africa, English, dollar
"""

CITIES = rows("""
Barcelona: Spain; Milan: Italy; Munich: Germany; Lyon: France; Marseille: France; Hamburg: Germany
Manchester: the United Kingdom; Liverpool: the United Kingdom; Edinburgh: the United Kingdom
Osaka: Japan; Kyoto: Japan; Shanghai: China; Mumbai: India; Kolkata: India; Sydney: Australia
Melbourne: Australia; Toronto: Canada; Vancouver: Canada; Montreal: Canada
Chicago: the United States
New York: the United States; Los Angeles: the United States; Boston: the United States
Rio de Janeiro: Brazil; Sao Paulo: Brazil; Istanbul: Turkey; Karachi: Pakistan; Lagos: Nigeria
Cape Town: South Africa; Johannesburg: South Africa; Casablanca: Morocco; Alexandria: Egypt
Saint Petersburg: Russia; Krakow: Poland; Porto: Portugal; Geneva: Switzerland; Zurich: Switzerland
Antwerp: Belgium; Rotterdam: the Netherlands; Gothenburg: Sweden; Bergen: Norway; Busan: South Korea
Auckland: New Zealand; Dubai: the United Arab Emirates; Naples: Italy; Venice: Italy; Seville: Spain
""")

LANDMARKS = rows("""
the Eiffel Tower: Paris; the Colosseum: Rome; Big Ben: London; the Statue of Liberty: New York
the Acropolis: Athens; the Brandenburg Gate: Berlin; the Sagrada Familia: Barcelona
the Kremlin: Moscow; the Little Mermaid: Copenhagen; the Opera House with white sails: Sydney
the Golden Gate Bridge: San Francisco; the Blue Mosque: Istanbul; the Forbidden City: Beijing
the Louvre: Paris; the Prado: Madrid; the White House: Washington; the Atomium: Brussels
the Charles Bridge: Prague; the Burj Khalifa: Dubai; Table Mountain: Cape Town
""")

WONDERS = (
    ("longest river in Africa", "the Nile"),
    ("largest river in South America", "the Amazon"),
    ("largest ocean", "the Pacific Ocean"),
    ("smallest ocean", "the Arctic Ocean"),
    ("highest mountain in the world", "Mount Everest"),
    ("highest mountain in Africa", "Kilimanjaro"),
    ("highest mountain in Japan", "Mount Fuji"),
    ("largest hot desert", "the Sahara"),
    ("largest country in the world", "Russia"),
    ("smallest country in the world", "Vatican City"),
    ("largest continent", "Asia"),
    ("smallest continent", "Oceania"),
    ("coldest continent", "Antarctica"),
    ("largest island in the world", "Greenland"),
    ("deepest lake in the world", "Lake Baikal"),
    ("largest rainforest", "the Amazon rainforest"),
    ("longest wall in the world", "the Great Wall of China"),
    ("river that flows through Paris", "the Seine"),
    ("river that flows through London", "the Thames"),
    ("river that flows through Vienna", "the Danube"),
    ("sea between Europe and Africa", "the Mediterranean Sea"),
)

CAPITAL = (
    "What is the capital of {k}?",
    "What's the capital of {k}?",
    "Tell me the capital of {k}.",
    "Which city is the capital of {k}?",
    "Name the capital of {k}.",
    "capital of {k}",
    "Do you know the capital of {k}?",
    "What is the capital city of {k}?",
    "Can you tell me what the capital of {k} is?",
    "I forgot the capital of {k}. What is it?",
)
CAPITAL_OF = (
    "{v} is the capital of which country?",
    "Which country has the capital {v}?",
    "Of which country is {v} the capital?",
    "What country is {v} the capital of?",
    "In which country is the capital {v}?",
)
CONTINENT = (
    "On which continent is {k}?",
    "What continent is {k} in?",
    "Which continent is {k} on?",
    "Where in the world is {k}?",
    "Name the continent of {k}.",
    "In which continent does {k} lie?",
)
LANGUAGE = (
    "What language do people speak in {k}?",
    "Which language is spoken in {k}?",
    "What is the main language of {k}?",
    "What do they speak in {k}?",
    "Name the main language of {k}.",
)
CURRENCY = (
    "What is the currency of {k}?",
    "What money is used in {k}?",
    "Which currency does {k} use?",
    "What currency do they use in {k}?",
    "Name the currency of {k}.",
    "What do people pay with in {k}?",
)
CITY = (
    "In which country is {k}?",
    "Which country is {k} in?",
    "What country is {k} in?",
    "Where is {k}?",
    "{k} is a city in which country?",
)
LANDMARK = (
    "Where is {k}?",
    "In which city is {k}?",
    "Which city is {k} in?",
    "Where can I see {k}?",
    "What city should I visit to see {k}?",
)
WONDER = (
    "What is the {k}?",
    "What's the {k}?",
    "Name the {k}.",
    "Tell me the {k}.",
    "Do you know the {k}?",
    "Can you name the {k}?",
)


def columns() -> list[dict[str, str]]:
    """Return the four tables country -> capital, continent, language, currency."""
    split = {k: v.split(", ") for k, v in rows(COUNTRIES).items()}
    return [{k: v[i] for k, v in split.items()} for i in range(4)]


def facts() -> list[Fact]:
    """Return every fact about countries, cities and places."""
    capital, continent, language, currency = columns()
    different = {k: v for k, v in capital.items() if k != v}
    made = facts_from("capital", capital, CAPITAL, "The capital of {k} is {v}.")
    made += [
        Fact(f.kind, f.name, f.prompts, f.answer, f.name.removeprefix("the "))
        for f in facts_from("capital_of", different, CAPITAL_OF, "{v} is the capital of {k}.")
    ]
    made += facts_from("continent", continent, CONTINENT, "{K} is in {v}.")
    made += facts_from("language", language, LANGUAGE, "The main language of {k} is {v}.")
    made += facts_from("currency", currency, CURRENCY, "The currency of {k} is the {v}.")
    made += facts_from("city", CITIES, CITY, "{K} is in {v}.")
    made += facts_from("landmark", LANDMARKS, LANDMARK, "{K} is in {v}.")
    made += facts_from("geography", dict(WONDERS), WONDER, "The {k} is {v}.")
    return made
